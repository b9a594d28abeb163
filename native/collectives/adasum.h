// Adasum: adds gradients that agree with each other less, the more they do. Ranks combine in pairs,
// neighbours first, so their number must be a power of two.
#pragma once

#include "collectives/kernels/kernels.h"

namespace khorovod {

// out = the Adasum of the sources, scaled; `out` may be one of them. Of each pair
//   a * (1 - ab / 2aa) + b * (1 - ab / 2bb),   a vector of length zero weighs 1.
// Halves are widened to float32 first and rounded once at the end.
void adasum(DType dtype, std::byte* out, const std::byte* const* sources, int source_count,
            std::size_t count, Scale scale);

}  // namespace khorovod
