// How to copy into a slot: through the cache, or past it.
//
// Where the cores of two ranks share a cache, what is written through it is still there when the
// other rank reads it. Where they do not (cores of different sockets, or of different parts of
// AMD's), every line that the other rank has read must be taken from it before it can be written
// again, which takes four times as long as writing past the cache. Which of the two it is cannot be
// asked, and changes when the scheduler, or a hypervisor, moves a rank: so it is tried, over and
// over. A decision only: it copies nothing and reads no clock.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/clock.h"

namespace khorovod {

class CopyChoice {
 public:
  // Less than this proves nothing, and is in the cache anyway.
  static constexpr std::size_t kSmallest = std::size_t{16} << 10;
  // Of so many copies, the first few are tried in turn both ways; the better way does the others.
  static constexpr unsigned kPeriod = 64;
  static constexpr unsigned kTrials = 4;

  // Whether the next copy should go past the cache.
  bool past_cache() const { return done_ < kTrials ? done_ % 2 == 1 : settled_; }

  // What the copy took that `past_cache` was asked for.
  void took(std::size_t bytes, Nanoseconds time) {
    if (bytes < kSmallest) return;
    if (done_ < kTrials) {
      double& best = best_[done_ % 2];
      const double cost = static_cast<double>(time) / static_cast<double>(bytes);
      best = done_ < 2 ? cost : std::min(best, cost);  // the other may have lost the core
    }
    if (++done_ == kTrials) settled_ = best_[1] * kAdvantage < best_[0];
    if (done_ == kPeriod) done_ = 0;
  }

 private:
  // The rank that reads has to get it from memory then, so writing must be this much quicker.
  static constexpr double kAdvantage = 2;

  unsigned done_ = 0;  // copies of this period
  bool settled_ = false;
  double best_[2] = {0, 0};  // nanoseconds per byte of the trials: through the cache, past it
};

}  // namespace khorovod
