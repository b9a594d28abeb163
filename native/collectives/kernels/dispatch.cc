#include "collectives/kernels/kernels.h"

namespace khorovod {

namespace baseline {
extern const Kernels kernels;
}
#if defined(__x86_64__) && !defined(KHOROVOD_BASELINE_ONLY)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> sets{&baseline::kernels};
#if defined(__x86_64__) && !defined(KHOROVOD_BASELINE_ONLY)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
    sets.push_back(&avx2::kernels);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    sets.push_back(&avx512::kernels);
  }
#endif
  return sets;
}

const Kernels& kernels() {
  static const Kernels& best = *supported_kernels().back();
  return best;
}

}  // namespace khorovod
