#include "collectives/kernels/kernels.h"

namespace khorovod {

namespace baseline {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

const Kernels& kernels() {
#if defined(__x86_64__)
  static const Kernels& best = []() -> const Kernels& {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      return avx512::kernels;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2::kernels;
    return baseline::kernels;
  }();
  return best;
#else
  return baseline::kernels;
#endif
}

}  // namespace khorovod
