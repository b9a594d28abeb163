// The link between ranks that share no memory: one connected stream socket per peer. It does not
// connect or authenticate anything; who made the sockets did.
//
// Every rank tells every other that it leaves or aborts, so that the end of a connection can be
// told from a death. That a rank has *departed*, though, counts only when the coordinator passes it
// on (or departs itself): its connection is in order with its decisions, so whoever hears of a
// departure has every decision that the departed rank may have carried out.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/link.h"
#include "transport/frames.h"

namespace khorovod {

class TcpLink : public Link {
 public:
  // `sockets[r]` is connected with rank r, `names[r]` describes it in messages; the own entries are
  // not used. `thread_wake` is the engine thread's eventfd. `companions` are the data plane's
  // sockets, which `leave` ends along with its own. Descriptors given as int are not owned.
  TcpLink(int rank, int size, std::vector<UniqueFd> sockets, std::vector<std::string> names,
          int thread_wake, std::vector<int> companions);

  // For a forked child, which must not keep its parent's connections open; nothing else works
  // after.
  void close_descriptors();

  const char* name() const override { return "tcp"; }
  void send(int peer, Bytes message) override;
  bool receive(const Receiver& receiver) override;
  bool flush() override;
  bool backlog() const override;
  Status failure() const override { return broken_; }
  void abort(const Status& reason) override;
  void leave(std::uint64_t batch, const std::string& last_words) override;
  // Of a departure that was heard of from the coordinator, in order with its decisions, nothing is
  // missing.
  std::uint64_t left_after(int peer) const override {
    return passed_on_[static_cast<std::size_t>(peer)] ? 0 : UINT64_MAX;
  }
  // Until the coordinator gives up itself, or goes: whoever did so before may be ahead of its line.
  bool decisions_may_come(std::uint64_t) const override {
    return rank_ != 0 && !coordinator_gave_up_ && lines_.front().readable;
  }
  int departed() const override { return departed_.load(std::memory_order_acquire); }
  bool has_left(int peer) const override {
    return left_[static_cast<std::size_t>(peer)].load(std::memory_order_acquire);
  }
  std::string last_words(int peer) const override { return line(peer).last_words; }
  std::uint32_t mark() const override { return bell_rings_.load(std::memory_order_acquire); }
  bool news_since(std::uint32_t mark) const override;
  Wakeup sleep(std::uint32_t mark, Wanted wanted, std::vector<pollfd>& fds,
               Nanoseconds timeout) override;
  // Sockets keep their news until they are read: only a wake-up since the mark would be lost.
  bool park(std::uint32_t mark, Wanted) override { return this->mark() == mark; }
  void wanted_fds(std::vector<pollfd>& fds) const override;
  void wake(int) override {}  // what was sent wakes it
  void wake_self() override;

 private:
  // The first byte of a frame.
  enum class Tag : std::uint8_t {
    kControl,   // a message for the engine
    kGoodbye,   // the sender leaves, and why; its last frame
    kDeparted,  // from the coordinator: a rank has left, and why
    kAbort,     // the world is broken; a Status
  };
  static constexpr int kTagCount = 4;

  struct Line {
    int peer;
    UniqueFd socket;
    std::string name;
    bool readable = true;  // neither goodbye nor end of stream so far
    bool writable = true;
    std::string last_words{};
    FrameWriter writer{};
    FrameReader reader{};
  };

  Line& line(int peer) { return lines_[static_cast<std::size_t>(peer < rank_ ? peer : peer - 1)]; }
  const Line& line(int peer) const { return const_cast<TcpLink*>(this)->line(peer); }
  void send_frame(Line& line, Bytes frame);
  bool flush(Line& line);
  bool receive(Line& line, const Receiver& receiver);
  bool on_frame(Line& line, Bytes frame, const Receiver& receiver);
  bool on_departed(Reader& in);
  void on_goodbye(Line& line);
  void set_departed(int rank);
  void flush_until(Nanoseconds deadline);

  const int rank_;
  std::vector<Line> lines_;  // one per peer, in the order of ranks
  const int thread_wake_;
  const std::vector<int> companions_;
  UniqueFd bell_;  // wakes a caller that drives
  Status broken_;
  bool abort_told_ = false;  // to everybody, by this rank
  bool coordinator_gave_up_ = false;
  std::vector<bool> passed_on_;  // by rank: that it has left, in order with all decisions
  Writer outgoing_;
  std::vector<pollfd> poll_;

  // Between threads.
  std::atomic<std::uint32_t> bell_rings_{0};
  std::atomic<int> departed_{-1};
  const std::unique_ptr<std::atomic<bool>[]> left_;  // by rank
};

}  // namespace khorovod
