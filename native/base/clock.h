// Monotonic time. Decisions take `now` as an argument; only what carries them out asks the clock.
#pragma once

#include <time.h>

#include <cstdint>

namespace khorovod {

using Nanoseconds = std::int64_t;
inline constexpr Nanoseconds kMicrosecond = 1'000;
inline constexpr Nanoseconds kMillisecond = 1'000'000;
inline constexpr Nanoseconds kSecond = 1'000'000'000;

inline Nanoseconds now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * kSecond + ts.tv_nsec;
}

}  // namespace khorovod
