// How often to ask a plane that cannot wake anybody (see DataPlane::polls): a pure decision.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace khorovod {

// How long to sleep before the next question if nothing has moved for `still`; 0: not at all.
// The pause grows with the wait, so that asking costs little of a long one and delays it by a
// quarter at most. `spin` is for how long a waiting thread may keep its CPU.
constexpr Nanoseconds poll_pause(Nanoseconds still, Nanoseconds spin) {
  constexpr Nanoseconds kShortest = 10 * kMicrosecond;
  constexpr Nanoseconds kLongest = kMillisecond;
  if (still < std::max(spin, kShortest)) return 0;
  return std::clamp(still / 4, kShortest, kLongest);
}

}  // namespace khorovod
