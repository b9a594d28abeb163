// How long a waiting thread gives way before it sleeps, where ranks share cores: a pure decision.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace khorovod {

// The rank that a thread waits for may be next to run on this very core: giving way to it is
// cheaper than to sleep and be woken, which on a virtual machine takes tens of microseconds. Where
// something else wants the core, giving way only uses up this rank's right to it. So what has
// helped is done for longer, and what has not for less long.
class YieldTime {
 public:
  static constexpr Nanoseconds kLongest = 50 * kMicrosecond;

  // A thread yields at least once in any case, so that it notices when that helps again.
  Nanoseconds now() const { return time_; }
  void helped() { time_ = std::min(2 * time_ + kMicrosecond, kLongest); }
  void was_in_vain() { time_ /= 2; }

 private:
  Nanoseconds time_ = kLongest;
};

}  // namespace khorovod
