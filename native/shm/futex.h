// Raw futexes on words in shared memory. std::atomic::wait uses process-private futexes and would
// lose wake-ups between processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/clock.h"

namespace khorovod {

enum class FutexResult { kWoken, kTimeout, kInterrupted };

// Sleeps while `word` holds `expected`, at most `timeout`. kWoken may be spurious.
inline FutexResult futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                              Nanoseconds timeout) {
  timespec ts{timeout / kSecond, timeout % kSecond};
  if (::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &ts, nullptr, 0) == 0) {
    return FutexResult::kWoken;
  }
  if (errno == ETIMEDOUT) return FutexResult::kTimeout;
  if (errno == EINTR) return FutexResult::kInterrupted;
  return FutexResult::kWoken;  // EAGAIN: the word had changed already
}

inline void futex_wake(std::atomic<std::uint32_t>& word, int count) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

}  // namespace khorovod
