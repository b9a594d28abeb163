#include "engine/shm_link.h"

#include "shm/futex.h"

namespace khorovod {

ShmLink::ShmLink(const ShmDomain& domain) : domain_(domain) {
  if (domain.rank() == 0) {
    for (int peer = 1; peer < domain.size(); ++peer) {
      mailboxes_.push_back(
          {peer, &domain.from_coordinator(peer), &domain.to_coordinator(peer), {}, {}});
    }
  } else {
    const int me = domain.rank();
    mailboxes_.push_back({0, &domain.to_coordinator(me), &domain.from_coordinator(me), {}, {}});
  }
}

void ShmLink::send(int peer, Bytes message) {
  Mailbox& to = mailbox(peer);
  if (!to.writer.send(message, [&](Bytes bytes) { return to.out->write_some(bytes); })) {
    broken_ = Status::error(Code::kInternal,
                            "the mailbox to rank " + std::to_string(peer) + " is corrupt");
  }
  domain_.ring(peer, kNewsControl);
}

bool ShmLink::flush(Mailbox& mailbox) {
  if (!mailbox.writer.backlog()) return false;
  const auto sent =
      mailbox.writer.flush([&](Bytes bytes) { return mailbox.out->write_some(bytes); });
  if (sent > 0) domain_.ring(mailbox.peer, mailbox.urgent ? kNewsUrgent : kNewsControl);
  mailbox.urgent &= mailbox.writer.backlog();
  return sent > 0;
}

void ShmLink::wake(int peer) {
  mailbox(peer).urgent = mailbox(peer).writer.backlog();
  domain_.ring(peer, kNewsUrgent);
}

bool ShmLink::flush() {
  bool moved = false;
  for (Mailbox& mailbox : mailboxes_) moved |= flush(mailbox);
  return moved;
}

bool ShmLink::backlog() const {
  for (const Mailbox& mailbox : mailboxes_) {
    if (mailbox.writer.backlog()) return true;
  }
  return false;
}

bool ShmLink::receive(const Receiver& receiver) {
  bool moved = false;
  for (Mailbox& mailbox : mailboxes_) {
    const std::ptrdiff_t came =
        mailbox.reader.receive([&](std::span<std::byte> to) { return mailbox.in->read_some(to); },
                               [&](Bytes message) { return receiver(mailbox.peer, message); });
    if (came < 0) {
      broken_ =
          Status::error(Code::kInternal, "a control message from rank " +
                                             std::to_string(mailbox.peer) + " makes no sense");
      return true;
    }
    moved |= came > 0;
    // The writer may be waiting for room.
    if (came > static_cast<std::ptrdiff_t>(ByteRing::kCapacity / 2))
      domain_.ring(mailbox.peer, kNewsControl);
  }
  return moved;
}

Status ShmLink::failure() const { return broken_.ok() ? domain_.aborted() : broken_; }

bool ShmLink::has_left(int peer) const {
  return domain_.block(peer).presence.load(std::memory_order_acquire) ==
         static_cast<std::uint32_t>(Presence::kLeft);
}

bool ShmLink::decisions_may_come(std::uint64_t carried_out) const {
  if (domain_.rank() == 0 || has_left(0)) return false;
  for (int peer = 1; peer < domain_.size(); ++peer) {
    if (peer != domain_.rank() && has_left(peer) && left_after(peer) > carried_out) return true;
  }
  return false;
}

std::uint32_t ShmLink::mark() const {
  return domain_.mine().doorbell.sequence.load(std::memory_order_acquire);
}

bool ShmLink::news_since(std::uint32_t mark) const { return this->mark() != mark; }

Wakeup ShmLink::sleep(std::uint32_t mark, Wanted wanted, std::vector<pollfd>&,
                      Nanoseconds timeout) {
  Doorbell& bell = domain_.mine().doorbell;
  if (!bell.announce_sleep(Doorbell::kOnFutex, wanted, mark)) return Wakeup::kNews;
  const FutexResult result = futex_wait(bell.sequence, mark, timeout);
  bell.announce_awake();
  if (result == FutexResult::kInterrupted) return Wakeup::kInterrupted;
  return result == FutexResult::kTimeout ? Wakeup::kTimeout : Wakeup::kNews;
}

bool ShmLink::park(std::uint32_t mark, Wanted wanted) {
  return domain_.mine().doorbell.announce_sleep(Doorbell::kInPoll, wanted, mark);
}

}  // namespace khorovod
