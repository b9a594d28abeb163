// Kernels run on whichever thread drives the engine; a program may have set flush-to-zero or
// another rounding mode there. For the scope of this object the thread computes as IEEE 754 says,
// so that the bits of a result do not depend on who happened to drive.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace khorovod {

class FloatEnvironment {
 public:
#if defined(__x86_64__)
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nearest, denormals kept
  unsigned saved_;
#else
  FloatEnvironment() {}
#endif
 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;
};

}  // namespace khorovod
