// What the engine does, as a ring of small records and running totals, for whoever looks inside:
// tests, the benchmark of negotiation cost, later stall reports and metrics. Cheap enough to be
// always on. (Timelines have records of their own, in trace.h: they need names.)
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/clock.h"

namespace khorovod {

enum class EventKind : std::uint8_t { kAnnounce, kDecide, kPlan, kComplete, kFail };
inline constexpr int kEventKindCount = 5;
const char* event_name(EventKind kind);

struct Event {
  Nanoseconds at = 0;
  std::uint64_t plan = 0;  // 0: none
  std::uint64_t bytes = 0;
  std::uint32_t tensors = 0;  // of a decision: plans
  EventKind kind = EventKind::kAnnounce;
};

// Totals since the start; written by the driving thread, read by anyone.
struct Counters {
  std::atomic<std::uint64_t> submitted{0};
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> plans{0};
  std::atomic<std::uint64_t> inline_tensors{0};
  std::atomic<std::uint64_t> cache_hits{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> negotiate_ns{0};  // announcing, receiving, deciding, resolving
  std::atomic<std::uint64_t> move_ns{0};       // in the data plane
  std::atomic<std::uint64_t> sleeps{0};        // of a driving caller
  std::atomic<std::uint64_t> thread_wakeups{0};
};

// For a counter that has one writer at a time: cheaper than an atomic addition.
inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

class EventLog {
 public:
  void record(const Event& event) {
    const std::lock_guard lock(mutex_);
    ring_[next_++ % kCapacity] = event;
  }
  // The last events, oldest first.
  std::vector<Event> recent() const;

 private:
  static constexpr std::size_t kCapacity = 4096;
  mutable std::mutex mutex_;
  std::array<Event, kCapacity> ring_;  // guarded by mutex_
  std::uint64_t next_ = 0;             // guarded by mutex_
};

}  // namespace khorovod
