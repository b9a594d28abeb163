// Element-wise arithmetic, compiled once per instruction set. Every result element is computed as
// ((s0 + s1) + s2) + ..., lower rank on the left, then scaled: the bits depend neither on the
// instruction set nor on how a tensor was cut into pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace khorovod {

// v * factor / divisor. Integers divide exactly when the factor is one, else they go through double
// and truncate toward zero; floats multiply once by factor / divisor in their own type.
struct Scale {
  double factor = 1.0;
  std::int64_t divisor = 1;

  bool identity() const { return factor == 1.0 && divisor == 1; }
};

struct Kernels {
  const char* isa;
  // dst[i] = scaled sum over the sources; dst may be one of them.
  void (*sum)(DType dtype, std::byte* dst, const std::byte* const* sources, int source_count,
              std::size_t count, Scale scale);
  // dst[i] = scaled src[i]; dst may be src.
  void (*scale)(DType dtype, std::byte* dst, const std::byte* src, std::size_t count, Scale scale);
};

// The sets that this CPU can run, and the best of them.
std::vector<const Kernels*> supported_kernels();
const Kernels& kernels();

}  // namespace khorovod
