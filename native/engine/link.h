// How a rank hears from the others, tells them something, and sleeps until there is news. One
// implementation for ranks that share memory, one for sockets. Used under the engine's progress
// lock, but for what says otherwise.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/wire.h"
#include "shm/doorbell.h"

namespace khorovod {

enum class Wakeup { kNews, kTimeout, kInterrupted };

class Link {
 public:
  using Receiver = std::function<bool(int peer, Bytes message)>;  // false: the message is malformed

  virtual ~Link() = default;

  virtual const char* name() const = 0;

  // Control messages. Rank 0 talks with every rank, the others with rank 0 only.
  virtual void send(int peer, Bytes message) = 0;      // what does not go out at once is kept
  virtual bool receive(const Receiver& receiver) = 0;  // true if anything came
  virtual bool flush() = 0;                            // true if anything went out
  virtual bool backlog() const = 0;                    // something is kept that did not go out yet

  // kOk, or why this world is broken: somebody aborted it, a connection ended, bytes made no sense.
  virtual Status failure() const = 0;
  // Breaks the world for everybody.
  virtual void abort(const Status& reason) = 0;
  // This rank goes, cleanly: what it owed to others is done. `batch` is the last that it carried
  // out, `last_words` say why it goes ("" if nothing is to be said).
  virtual void leave(std::uint64_t batch, const std::string& last_words) = 0;
  // A rank that has left, or -1. May be called without the progress lock.
  virtual int departed() const = 0;
  virtual bool has_left(int peer) const = 0;
  virtual std::string last_words(int peer) const = 0;    // of a rank that has left
  virtual std::uint64_t left_after(int peer) const = 0;  // the batch, of a rank that has left
  // In a world that others have given up: whether the coordinator may have sent decisions that a
  // rank which has left carried out, and this one, having come to `carried_out`, has yet to get.
  virtual bool decisions_may_come(std::uint64_t carried_out) const = 0;

  // Sleeping. Take a mark, look for work, and only then sleep until something newer than the mark.
  virtual std::uint32_t mark() const = 0;
  virtual bool news_since(std::uint32_t mark) const = 0;
  // For the thread that drives: returns early on a signal.
  virtual Wakeup sleep(std::uint32_t mark, Wanted wanted, std::vector<pollfd>& fds,
                       Nanoseconds timeout) = 0;
  // From now on news of these kinds wakes the engine thread; false if there is some already.
  virtual bool park(std::uint32_t mark, Wanted wanted) = 0;
  // The sockets that the engine thread must poll while nobody drives (none in shared memory).
  virtual void wanted_fds(std::vector<pollfd>& fds) const = 0;
  // Makes a peer look at what it was sent, even if it has nothing pending.
  virtual void wake(int peer) = 0;
  // Wakes whoever sleeps for this rank; any thread may call it.
  virtual void wake_self() = 0;
};

}  // namespace khorovod
