// Operations that the engine does not move itself. It agrees on them with the other ranks as on any
// other; when their plan comes up it *hands* them to the framework that has the tensors: to an
// *executor*, a thread that the engine knows nothing of, which says when they are done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/operation.h"

namespace khorovod {

// A plan's share of this rank. Of the operations only what does not change any more may be looked
// at: request, members, token, whether they stand in.
struct HandedWork {
  std::uint64_t number = 0;
  std::uint64_t plan = 0;  // the same on all members
  std::vector<OperationRef> operations;
  std::vector<std::vector<std::int64_t>> numbers;  // of each, what its plan says of sizes
};

struct HandedResult {
  std::uint64_t work = 0;
  std::string error;  // empty: done
};

// Any thread may call any of this.
class Handing {
 public:
  // -- The executor.
  // From now on somebody takes works.
  void open();
  // The next work; waits for one. Empty when the time is over, or there will be none any more.
  std::optional<HandedWork> next(Nanoseconds timeout);
  // Says how a work ended; false if nobody wants to know any more.
  bool finish(std::uint64_t work, std::string error);
  // Waits until there will be no more works; false if the time is over.
  bool wait_until_closed(Nanoseconds timeout);

  // -- The engine.
  bool is_open() const { return open_.load(std::memory_order_acquire); }
  void put(HandedWork work);
  // True if `results` got any.
  bool take_results(std::vector<HandedResult>& results);
  // Nothing more will come, what is queued is forgotten, and nobody wants to know of the rest.
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HandedWork> works_;       // guarded by mutex_
  std::vector<HandedResult> results_;  // guarded by mutex_
  bool closed_ = false;                // guarded by mutex_
  std::atomic<bool> open_{false};
  std::atomic<bool> any_results_{false};
};

}  // namespace khorovod
