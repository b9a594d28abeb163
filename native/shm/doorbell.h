// How ranks of one host wake each other. Whoever changes something that a rank may wait for rings
// that rank's doorbell: it raises `sequence` and, only if the rank sleeps and waits for this kind
// of news, wakes it: by futex if a caller sleeps there, by eventfd if the engine thread does (it
// has pidfds and a timer to watch in the same poll).
#pragma once

#include <atomic>
#include <cstdint>

namespace khorovod {

// Kinds of news; a sleeper names those that it waits for.
enum News : std::uint32_t {
  kNewsControl = 1,    // a control message for the tensors this rank has pending
  kNewsPublished = 2,  // a chunk was copied into a slot
  kNewsReduced = 4,    // a share of a chunk was reduced
  kNewsConsumed = 8,   // a slot may be written again
  kNewsUrgent = 16,    // an abort, a departure, work for a coordinator that has nothing pending
};
inline constexpr std::uint32_t kAllNews = 31;
inline constexpr std::uint32_t kPlaneNews = kNewsPublished | kNewsReduced | kNewsConsumed;

// What a sleeper waits for. With `from`, news of the data plane counts only if it comes from that
// rank: waking for the others' would cost more than it saves when ranks outnumber cores.
struct Wanted {
  std::uint32_t news = 0;
  int from = -1;
};

struct alignas(64) Doorbell {
  enum Sleep : std::uint32_t { kAwake = 0, kOnFutex = 1, kInPoll = 2 };

  std::atomic<std::uint32_t> sequence;
  std::atomic<std::uint32_t> sleeper;  // Sleep, wanted news and rank plus one: 8, 8 and 16 bits

  static constexpr std::uint32_t asleep(Sleep how, Wanted wanted) {
    return how | wanted.news << 8 | static_cast<std::uint32_t>(wanted.from + 1) << 16;
  }

  // `from` is the rank that rings; `eventfd` belongs to the rank whose doorbell this is.
  void ring(News news, int from, int eventfd);

  // After this returns true it is safe to sleep until `sequence` differs from `seen`.
  bool announce_sleep(Sleep how, Wanted wanted, std::uint32_t seen) {
    sleeper.store(asleep(how, wanted), std::memory_order_seq_cst);
    if (sequence.load(std::memory_order_seq_cst) == seen) return true;
    sleeper.store(kAwake, std::memory_order_relaxed);
    return false;
  }
  void announce_awake() { sleeper.store(kAwake, std::memory_order_relaxed); }
};

// Makes an eventfd readable; never blocks.
void signal_eventfd(int eventfd);

}  // namespace khorovod
