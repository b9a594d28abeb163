// The link between ranks of one shared-memory domain: mailboxes and doorbells.
#pragma once

#include <memory>
#include <vector>

#include "engine/link.h"
#include "shm/domain.h"
#include "transport/frames.h"

namespace khorovod {

class ShmLink : public Link {
 public:
  explicit ShmLink(const ShmDomain& domain);

  const char* name() const override { return "shm"; }
  void send(int peer, Bytes message) override;
  bool receive(const Receiver& receiver) override;
  bool flush() override;
  bool backlog() const override;
  Status failure() const override;
  void abort(const Status& reason) override { domain_.abort(reason); }
  void leave(std::uint64_t batch, const std::string& last_words) override {
    domain_.leave(batch, last_words);
  }
  int departed() const override { return domain_.departed(); }
  bool has_left(int peer) const override;
  std::string last_words(int peer) const override { return domain_.last_words(peer); }
  std::uint64_t left_after(int peer) const override {
    return domain_.block(peer).left_after.load(std::memory_order_relaxed);
  }
  bool decisions_may_come(std::uint64_t carried_out) const override;
  std::uint32_t mark() const override;
  bool news_since(std::uint32_t mark) const override;
  Wakeup sleep(std::uint32_t mark, Wanted wanted, std::vector<pollfd>& fds,
               Nanoseconds timeout) override;
  bool park(std::uint32_t mark, Wanted wanted) override;
  void wanted_fds(std::vector<pollfd>&) const override {}
  void wake(int peer) override;
  void wake_self() override { domain_.ring(domain_.rank(), kNewsUrgent); }

 private:
  struct Mailbox {
    int peer;
    ByteRing* out;
    ByteRing* in;
    FrameWriter writer;
    FrameReader reader;
    bool urgent = false;  // what is kept must wake the peer
  };

  Mailbox& mailbox(int peer) {
    return mailboxes_[domain_.rank() == 0 ? static_cast<std::size_t>(peer - 1) : 0];
  }
  bool flush(Mailbox& mailbox);

  const ShmDomain& domain_;
  std::vector<Mailbox> mailboxes_;
  Status broken_;
};

}  // namespace khorovod
