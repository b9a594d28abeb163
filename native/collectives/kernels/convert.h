// Scaling and conversion of one vector. Part of kernels.cc; see its first comment.
#pragma once

#include "collectives/kernels/halves.h"

namespace khorovod::KHOROVOD_ISA {

namespace {

// With arguments of its own: a byte written through `dst` might be one of a captured variable's.
template <typename T, typename Finish>
void map(T* dst, const T* src, std::size_t count, Finish finish) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) dst[i] = finish(src[i]);
}

template <typename T>
void scale_integers(T* dst, const T* src, std::size_t count, Scale scale) {
  with_scaling<T>(scale, [&](auto finish) { map(dst, src, count, finish); });
}

// How many elements the CPU's own conversions have done; the rest is left to the plain loop.
template <typename To, typename From, typename Finish>
inline std::size_t convert_vectors(To*, const From*, std::size_t, Finish) {
  return 0;
}

#if defined(__F16C__)
template <typename Finish>
inline std::size_t convert_vectors(float* dst, const Float16* src, std::size_t count,
                                   Finish finish) {
  std::size_t i = 0;
  for (; i + kPair <= count; i += kPair) {
    const Pair pair = load_pair(src + i);
    store_pair(dst + i, {canonical(finish(pair.a)), canonical(finish(pair.b))});
  }
  return i;
}

template <typename From, typename Finish>
inline std::size_t convert_to_float16(Float16* dst, const From* src, std::size_t count,
                                      Finish finish) {
  std::size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    Line line;
    for (std::size_t p = 0; p < kLine / kPair; ++p) {
      const Pair pair = load_pair(src + i + p * kPair);
      line.pairs[p] = {finish(pair.a), finish(pair.b)};
    }
    store_line(dst + i, line);
  }
  return i;
}

template <typename Finish>
inline std::size_t convert_vectors(Float16* dst, const float* src, std::size_t count,
                                   Finish finish) {
  return convert_to_float16(dst, src, count, finish);
}

template <typename Finish>
inline std::size_t convert_vectors(Float16* dst, const Float16* src, std::size_t count,
                                   Finish finish) {
  return convert_to_float16(dst, src, count, finish);
}
#endif

template <typename To, typename From>
void convert_floating(To* dst, const From* src, std::size_t count, Scale scale) {
  with_scaling<typename Arithmetic<From>::Type>(scale, [&](auto finish) {
    std::size_t i = convert_vectors(dst, src, count, finish);
#pragma GCC ivdep
    for (; i < count; ++i) store(dst + i, finish(load(src + i)));
  });
}

template <typename From>
void convert_from(DType to, std::byte* dst, const std::byte* src, std::size_t count, Scale scale) {
  const From* const from = reinterpret_cast<const From*>(src);
  switch (to) {
    case DType::kFloat16:
      return convert_floating(reinterpret_cast<Float16*>(dst), from, count, scale);
    case DType::kBfloat16:
      return convert_floating(reinterpret_cast<Bfloat16*>(dst), from, count, scale);
    case DType::kFloat32:
      return convert_floating(reinterpret_cast<float*>(dst), from, count, scale);
    case DType::kFloat64:
      return convert_floating(reinterpret_cast<double*>(dst), from, count, scale);
    default:
      __builtin_trap();  // the engine converts between floating types only
  }
}

template <typename T>
void scale_as(std::byte* dst, const std::byte* src, std::size_t count, Scale scale) {
  scale_integers(reinterpret_cast<T*>(dst), reinterpret_cast<const T*>(src), count, scale);
}

}  // namespace

}  // namespace khorovod::KHOROVOD_ISA
