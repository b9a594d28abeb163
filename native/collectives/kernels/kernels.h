// Element-wise arithmetic, compiled once per instruction set. Every result element is computed as
// ((s0 op s1) op s2) op ..., lower rank on the left, then scaled: the bits depend neither on the
// instruction set nor on how a tensor was cut into pieces. Halves (float16, bfloat16) are widened
// to float32 and rounded once, at the end. NaN wins over everything and is always the same NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace khorovod {

// v * factor / divisor. Integers divide exactly when the factor is one, else they go through double
// and truncate toward zero; floats multiply once by factor / divisor in their own type, halves in
// float32.
struct Scale {
  double factor = 1.0;
  std::int64_t divisor = 1;

  bool identity() const { return factor == 1.0 && divisor == 1; }
};

enum class Reduction : std::uint8_t { kSum, kMin, kMax, kProduct };

// Sums over a pair of vectors, for Adasum.
struct Dots {
  double aa = 0;
  double ab = 0;
  double bb = 0;
};

struct Kernels {
  const char* isa;

  // dst[i] = the scaled reduction over the sources; dst may be one of them. Integers wrap. Of bool,
  // minimum (and) and maximum (or), unscaled, are all there is.
  void (*reduce)(Reduction reduction, DType dtype, std::byte* dst, const std::byte* const* sources,
                 int source_count, std::size_t count, Scale scale);

  // dst[i] = src[i], scaled in the type `from` (halves in float32), then rounded to the type `to`.
  // The two are the same type, or both floating. dst may be src if the types are the same.
  void (*convert)(DType to, std::byte* dst, DType from, const std::byte* src, std::size_t count,
                  Scale scale);

  // dst[i] = the value that changes nothing in the reduction: 0, the highest, the lowest value
  // (infinities for floats), 1.
  void (*fill_identity)(Reduction reduction, DType dtype, std::byte* dst, std::size_t count);

  // The dot products of two float32 or float64 vectors, in double: element i is added to lane
  // i % 8, in rising order; then ((l0 + l1) + (l2 + l3)) + ((l4 + l5) + (l6 + l7)).
  Dots (*dots)(DType dtype, const std::byte* a, const std::byte* b, std::size_t count);

  // dst[i] = a[i] * by_a + b[i] * by_b, in double, rounded once, of float32 or float64; dst may be
  // a or b.
  void (*blend)(DType dtype, std::byte* dst, const std::byte* a, double by_a, const std::byte* b,
                double by_b, std::size_t count);
};

// The sets that this CPU can run, and the best of them.
std::vector<const Kernels*> supported_kernels();
const Kernels& kernels();

}  // namespace khorovod
