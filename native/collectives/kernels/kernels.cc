// Compiled several times with KHOROVOD_ISA naming the instruction set. All code here and in the
// headers that only this file includes lives in that namespace and uses no library templates, so
// that the linker cannot pick an AVX copy of a shared inline function for a CPU that has no AVX.
#include "collectives/kernels/kernels.h"

#ifndef KHOROVOD_ISA
#error "KHOROVOD_ISA must name the instruction set"
#endif
#define KHOROVOD_STRING_OF(x) #x
#define KHOROVOD_STRING(x) KHOROVOD_STRING_OF(x)

#include "collectives/kernels/adasum.h"
#include "collectives/kernels/convert.h"
#include "collectives/kernels/reduce.h"

namespace khorovod::KHOROVOD_ISA {

namespace {

void reduce(Reduction reduction, DType dtype, std::byte* dst, const std::byte* const* sources,
            int n, std::size_t count, Scale scale) {
  switch (dtype) {
    case DType::kBool:  // a byte that is 0 or 1; the engine allows minimum and maximum only
    case DType::kUint8:
      return reduce_as<std::uint8_t>(reduction, dst, sources, n, count, scale);
    case DType::kInt8:
      return reduce_as<std::int8_t>(reduction, dst, sources, n, count, scale);
    case DType::kUint16:
      return reduce_as<std::uint16_t>(reduction, dst, sources, n, count, scale);
    case DType::kInt16:
      return reduce_as<std::int16_t>(reduction, dst, sources, n, count, scale);
    case DType::kInt32:
      return reduce_as<std::int32_t>(reduction, dst, sources, n, count, scale);
    case DType::kInt64:
      return reduce_as<std::int64_t>(reduction, dst, sources, n, count, scale);
    case DType::kFloat16:
      return reduce_as<Float16>(reduction, dst, sources, n, count, scale);
    case DType::kBfloat16:
      return reduce_as<Bfloat16>(reduction, dst, sources, n, count, scale);
    case DType::kFloat32:
      return reduce_as<float>(reduction, dst, sources, n, count, scale);
    case DType::kFloat64:
      return reduce_as<double>(reduction, dst, sources, n, count, scale);
  }
}

void convert(DType to, std::byte* dst, DType from, const std::byte* src, std::size_t count,
             Scale scale) {
  if (to == from && scale.identity()) {
    if (count != 0) __builtin_memmove(dst, src, count * dtype_size(to));
    return;
  }
  switch (from) {
    case DType::kUint8:
      return scale_as<std::uint8_t>(dst, src, count, scale);
    case DType::kInt8:
      return scale_as<std::int8_t>(dst, src, count, scale);
    case DType::kUint16:
      return scale_as<std::uint16_t>(dst, src, count, scale);
    case DType::kInt16:
      return scale_as<std::int16_t>(dst, src, count, scale);
    case DType::kInt32:
      return scale_as<std::int32_t>(dst, src, count, scale);
    case DType::kInt64:
      return scale_as<std::int64_t>(dst, src, count, scale);
    case DType::kFloat16:
      return convert_from<Float16>(to, dst, src, count, scale);
    case DType::kBfloat16:
      return convert_from<Bfloat16>(to, dst, src, count, scale);
    case DType::kFloat32:
      return convert_from<float>(to, dst, src, count, scale);
    case DType::kFloat64:
      return convert_from<double>(to, dst, src, count, scale);
    case DType::kBool:
      __builtin_trap();  // the engine refused to scale it
  }
}

template <typename T>
void fill(std::byte* dst, std::size_t count, T value) {
  for (std::size_t i = 0; i < count; ++i) reinterpret_cast<T*>(dst)[i] = value;
}

template <typename T>
T identity_of(Reduction reduction, T highest, T lowest, T one) {
  switch (reduction) {
    case Reduction::kMin:
      return highest;
    case Reduction::kMax:
      return lowest;
    case Reduction::kProduct:
      return one;
    default:
      return T{0};
  }
}

template <typename T>
void fill_as(Reduction reduction, std::byte* dst, std::size_t count, T highest = kHighest<T>,
             T lowest = kLowest<T>, T one = T{1}) {
  fill(dst, count, identity_of<T>(reduction, highest, lowest, one));
}

void fill_identity(Reduction reduction, DType dtype, std::byte* dst, std::size_t count) {
  switch (dtype) {
    case DType::kBool:
      return fill_as<std::uint8_t>(reduction, dst, count, 1, 0);
    case DType::kUint8:
      return fill_as<std::uint8_t>(reduction, dst, count);
    case DType::kInt8:
      return fill_as<std::int8_t>(reduction, dst, count);
    case DType::kUint16:
      return fill_as<std::uint16_t>(reduction, dst, count);
    case DType::kInt16:
      return fill_as<std::int16_t>(reduction, dst, count);
    case DType::kInt32:
      return fill_as<std::int32_t>(reduction, dst, count);
    case DType::kInt64:
      return fill_as<std::int64_t>(reduction, dst, count);
    case DType::kFloat16:
      return fill_as<std::uint16_t>(reduction, dst, count, 0x7c00, 0xfc00, 0x3c00);
    case DType::kBfloat16:
      return fill_as<std::uint16_t>(reduction, dst, count, 0x7f80, 0xff80, 0x3f80);
    case DType::kFloat32:
      return fill_as<float>(reduction, dst, count, __builtin_inff(), -__builtin_inff());
    case DType::kFloat64:
      return fill_as<double>(reduction, dst, count, __builtin_inf(), -__builtin_inf());
  }
}

Dots dots(DType dtype, const std::byte* a, const std::byte* b, std::size_t count) {
  return dtype == DType::kFloat32 ? dots_as<float>(a, b, count) : dots_as<double>(a, b, count);
}

void blend(DType dtype, std::byte* dst, const std::byte* a, double by_a, const std::byte* b,
           double by_b, std::size_t count) {
  if (dtype == DType::kFloat32) return blend_as<float>(dst, a, by_a, b, by_b, count);
  blend_as<double>(dst, a, by_a, b, by_b, count);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {
    KHOROVOD_STRING(KHOROVOD_ISA), reduce, convert, fill_identity, dots, blend};

}  // namespace khorovod::KHOROVOD_ISA
