#include "engine/tcp_link.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "shm/doorbell.h"
#include "transport/socket_io.h"

namespace khorovod {

namespace {

// What leaving may take when a peer does not read.
constexpr Nanoseconds kLeaveTime = kSecond;

timespec timespec_of(Nanoseconds time) { return {time / kSecond, time % kSecond}; }

}  // namespace

TcpLink::TcpLink(int rank, int size, std::vector<UniqueFd> sockets, std::vector<std::string> names,
                 int thread_wake, std::vector<int> companions)
    : rank_(rank),
      thread_wake_(thread_wake),
      companions_(std::move(companions)),
      bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      passed_on_(static_cast<std::size_t>(size)),
      left_(std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(size))) {
  if (!bell_) throw std::system_error(errno, std::system_category(), "eventfd");
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto at = static_cast<std::size_t>(peer);
    prepare_stream_socket(sockets[at].get());
    lines_.push_back(
        {.peer = peer, .socket = std::move(sockets[at]), .name = std::move(names[at])});
  }
}

void TcpLink::close_descriptors() {
  for (Line& line : lines_) line.socket.reset();
  bell_.reset();
}

// ---------------------------------------------------------------------------------------------------
// Sending

// A stream that does not take anything any more says nothing about why: the reading side finds out,
// after what the peer sent before.
void TcpLink::send_frame(Line& line, Bytes frame) {
  if (!line.writable) return;
  line.writable = line.writer.send(frame, [&](Bytes bytes) {
    const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return send_some(line.socket.get(), &piece, 1);
  });
}

void TcpLink::send(int peer, Bytes message) {
  outgoing_.clear();
  outgoing_.u8(static_cast<std::uint8_t>(Tag::kControl));
  outgoing_.raw(message);
  send_frame(line(peer), outgoing_.view());
}

bool TcpLink::flush(Line& line) {
  if (!line.writable || !line.writer.backlog()) return false;
  const auto sent = line.writer.flush([&](Bytes bytes) {
    const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return send_some(line.socket.get(), &piece, 1);
  });
  line.writable = sent >= 0;
  return sent > 0;
}

bool TcpLink::flush() {
  bool moved = false;
  for (Line& line : lines_) moved |= flush(line);
  return moved;
}

bool TcpLink::backlog() const {
  for (const Line& line : lines_) {
    if (line.writable && line.writer.backlog()) return true;
  }
  return false;
}

// ---------------------------------------------------------------------------------------------------
// Receiving

bool TcpLink::receive(const Receiver& receiver) {
  bool moved = false;
  for (Line& line : lines_) {
    if (line.readable && broken_.ok()) moved |= receive(line, receiver);
  }
  // Who has aborted may have known what the coordinator has yet to tell this rank.
  if (!broken_.ok() && decisions_may_come(0)) {
    moved |= receive(lines_.front(), receiver);
  }
  return moved;
}

bool TcpLink::receive(Line& line, const Receiver& receiver) {
  int error = 0;
  const std::ptrdiff_t came = line.reader.receive(
      [&](std::span<std::byte> to) -> std::ptrdiff_t {
        if (!line.readable) return 0;  // nothing comes after a goodbye
        const iovec piece{to.data(), to.size()};
        const std::ptrdiff_t n = receive_some(line.socket.get(), &piece, 1);
        if (n < 0) error = static_cast<int>(-n);
        return n;
      },
      [&](Bytes frame) { return on_frame(line, frame, receiver); });
  if (came >= 0) return came > 0;
  line.readable = false;
  if (!broken_.ok()) return true;  // an abort, and then the end
  broken_ = error != 0 ? Status::lost(line.peer, line.name + describe_lost_connection(error))
                       : Status::error(Code::kInternal,
                                       "a control message from " + line.name + " makes no sense");
  return true;
}

bool TcpLink::on_frame(Line& line, Bytes frame, const Receiver& receiver) {
  Reader in(frame);
  const Tag tag = in.enumerator<Tag>(kTagCount);
  if (!in.ok() || !line.readable) return false;
  const bool with_coordinator = rank_ == 0 || line.peer == 0;
  switch (tag) {
    case Tag::kControl:
      return with_coordinator && receiver(line.peer, frame.subspan(1));
    case Tag::kGoodbye:
      line.last_words = in.string();
      on_goodbye(line);
      return in.done();
    case Tag::kDeparted:
      return line.peer == 0 && on_departed(in);
    case Tag::kAbort: {
      const std::uint8_t code = in.u8();
      const std::uint64_t whom = in.varint();  // the rank plus one
      std::string message = in.string();
      if (!in.done() || whom > lines_.size() + 1) return false;
      if (line.peer == 0) coordinator_gave_up_ = true;
      const bool known = code > 0 && code <= static_cast<std::uint8_t>(Code::kInternal);
      if (!broken_.ok()) return true;  // the first says why
      broken_ = {known ? static_cast<Code>(code) : Code::kInternal, std::move(message),
                 static_cast<int>(whom) - 1};
      return true;
    }
  }
  return false;
}

bool TcpLink::on_departed(Reader& in) {
  const std::uint64_t rank = in.varint();
  std::string last_words = in.string();
  if (!in.done() || rank > lines_.size()) return false;
  if (static_cast<int>(rank) != rank_)
    line(static_cast<int>(rank)).last_words = std::move(last_words);
  set_departed(static_cast<int>(rank));
  return true;
}

void TcpLink::on_goodbye(Line& line) {
  line.readable = false;
  left_[static_cast<std::size_t>(line.peer)].store(true, std::memory_order_release);
  if (line.peer == 0) return set_departed(0);
  if (rank_ != 0) return;  // the coordinator will pass it on
  set_departed(line.peer);
  outgoing_.clear();
  outgoing_.u8(static_cast<std::uint8_t>(Tag::kDeparted));
  outgoing_.varint(static_cast<std::uint64_t>(line.peer));
  outgoing_.string(line.last_words);
  for (Line& other : lines_) {
    if (other.readable) send_frame(other, outgoing_.view());
  }
}

void TcpLink::set_departed(int rank) {
  passed_on_[static_cast<std::size_t>(rank)] = true;
  int nobody = -1;
  departed_.compare_exchange_strong(nobody, rank, std::memory_order_acq_rel);
}

// ---------------------------------------------------------------------------------------------------
// Ending

// Also by who has heard it from another: whoever sees the end of this rank's connections must have
// heard before it why they ended.
void TcpLink::abort(const Status& reason) {
  if (broken_.ok()) broken_ = reason;
  if (std::exchange(abort_told_, true)) return;
  outgoing_.clear();
  outgoing_.u8(static_cast<std::uint8_t>(Tag::kAbort));
  outgoing_.u8(static_cast<std::uint8_t>(reason.code));
  outgoing_.varint(static_cast<std::uint64_t>(reason.rank + 1));
  outgoing_.string(reason.message);
  for (Line& line : lines_) send_frame(line, outgoing_.view());
}

void TcpLink::flush_until(Nanoseconds deadline) {
  while (backlog()) {
    const Nanoseconds left = deadline - now_ns();
    if (left <= 0) return;
    poll_.clear();
    for (const Line& line : lines_) {
      if (line.writable && line.writer.backlog()) poll_.push_back({line.socket.get(), POLLOUT, 0});
    }
    const timespec timeout = timespec_of(left);
    ::ppoll(poll_.data(), poll_.size(), &timeout, nullptr);
    flush();
  }
}

// Closing a socket that has unread input, or gets some later, makes the kernel reset the connection
// and drop what it had still to send. What has reached the peer's kernel is safe: a reset does not
// take it from there. So everything is sent and ended, and closing (by the destructors) waits for
// the peers' kernels, not for the peers: ranks that leave together do not hold each other up.
void TcpLink::leave(std::uint64_t, const std::string& last_words) {
  const Nanoseconds deadline = now_ns() + kLeaveTime;
  outgoing_.clear();
  outgoing_.u8(static_cast<std::uint8_t>(Tag::kGoodbye));
  outgoing_.string(last_words);
  for (Line& line : lines_) send_frame(line, outgoing_.view());
  flush_until(deadline);
  std::vector<int> ending = companions_;
  for (const Line& line : lines_) ending.push_back(line.socket.get());
  for (const int fd : ending) ::shutdown(fd, SHUT_WR);
  const auto delivered = [&] {
    for (const int fd : ending) {
      if (!stream_delivered(fd)) return false;
    }
    return true;
  };
  for (Nanoseconds pause = 20 * kMicrosecond; !delivered() && now_ns() < deadline;
       pause = std::min(2 * pause, 5 * kMillisecond)) {
    const timespec time = timespec_of(pause);
    ::nanosleep(&time, nullptr);
  }
}

// ---------------------------------------------------------------------------------------------------
// Sleeping

void TcpLink::wanted_fds(std::vector<pollfd>& fds) const {
  if (!broken_.ok()) {
    // Nobody reads any more, but for the rest of a coordinator's decisions.
    if (!abort_told_ && decisions_may_come(0)) {
      fds.push_back({lines_.front().socket.get(), POLLIN, 0});
    }
    return;
  }
  for (const Line& line : lines_) {
    const int events =
        (line.readable ? POLLIN : 0) | (line.writable && line.writer.backlog() ? POLLOUT : 0);
    if (events != 0) fds.push_back({line.socket.get(), static_cast<short>(events), 0});
  }
}

bool TcpLink::news_since(std::uint32_t mark) const {
  if (this->mark() != mark) return true;
  std::vector<pollfd> fds;
  wanted_fds(fds);
  return !fds.empty() && ::poll(fds.data(), fds.size(), 0) > 0;
}

Wakeup TcpLink::sleep(std::uint32_t mark, Wanted, std::vector<pollfd>& fds, Nanoseconds timeout) {
  // A wake-up after this look makes the bell readable; one before it was followed by no look for
  // work.
  if (this->mark() != mark) return Wakeup::kNews;
  poll_.assign(1, {bell_.get(), POLLIN, 0});
  wanted_fds(poll_);
  poll_.insert(poll_.end(), fds.begin(), fds.end());
  const timespec time = timespec_of(timeout);
  const int ready = ::ppoll(poll_.data(), poll_.size(), &time, nullptr);
  if (ready < 0) return errno == EINTR ? Wakeup::kInterrupted : Wakeup::kTimeout;
  if (poll_.front().revents != 0) {
    // The mark rose before the bell was rung: the driver's next mark and look come after both.
    std::uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t n = ::read(bell_.get(), &ignored, sizeof ignored);
  }
  return ready == 0 ? Wakeup::kTimeout : Wakeup::kNews;
}

void TcpLink::wake_self() {
  bell_rings_.fetch_add(1, std::memory_order_seq_cst);
  signal_eventfd(bell_.get());
  signal_eventfd(thread_wake_);
}

}  // namespace khorovod
