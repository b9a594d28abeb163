#include "collectives/adasum.h"

#include <vector>

namespace khorovod {

namespace {

double weight(double ab, double squared_norm) {
  return squared_norm == 0 ? 1.0 : 1.0 - ab / (2.0 * squared_norm);
}

}  // namespace

void adasum(DType dtype, std::byte* out, const std::byte* const* sources, int source_count,
            std::size_t count, Scale scale) {
  const bool half = dtype_size(dtype) == 2;
  const DType type = half ? DType::kFloat32 : dtype;
  const auto n = static_cast<std::size_t>(source_count);
  std::vector<std::vector<std::byte>> memory(n);
  std::vector<const std::byte*> vectors(sources, sources + n);
  const auto writable = [&](std::size_t i) {
    memory[i].resize(count * dtype_size(type));
    return memory[i].data();
  };
  if (half) {
    for (std::size_t i = 0; i < n; ++i) {
      std::byte* wide = writable(i);
      kernels().convert(type, wide, dtype, sources[i], count, {});
      vectors[i] = wide;
    }
  }
  for (std::size_t distance = 1; distance < n; distance *= 2) {
    for (std::size_t i = 0; i < n; i += 2 * distance) {
      const std::byte* a = vectors[i];
      const std::byte* b = vectors[i + distance];
      const Dots dots = kernels().dots(type, a, b, count);
      std::byte* sum = writable(i);
      kernels().blend(type, sum, a, weight(dots.ab, dots.aa), b, weight(dots.ab, dots.bb), count);
      vectors[i] = sum;
      memory[i + distance] = {};
    }
  }
  kernels().convert(dtype, out, type, vectors[0], count, scale);
}

}  // namespace khorovod
