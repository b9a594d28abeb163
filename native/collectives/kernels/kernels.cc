// Compiled several times with KHOROVOD_ISA naming the instruction set. All code here lives in that
// namespace and uses no library templates, so that the linker cannot pick an AVX copy of a shared
// inline function for a CPU that has no AVX.
#include "collectives/kernels/kernels.h"

#ifndef KHOROVOD_ISA
#error "KHOROVOD_ISA must name the instruction set"
#endif
#define KHOROVOD_STRING_OF(x) #x
#define KHOROVOD_STRING(x) KHOROVOD_STRING_OF(x)

namespace khorovod::KHOROVOD_ISA {

namespace {

// Additions wrap, as they do in numpy: through the unsigned type, where overflow is defined.
inline float add(float a, float b) { return a + b; }
inline double add(double a, double b) { return a + b; }
inline std::int32_t add(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
inline std::int64_t add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// Which operand's payload and sign a NaN result has is for the compiler to choose, and it chooses
// differently in the body and the tail of a loop. One NaN for all: the bits do not depend on where
// in a bucket an element lies.
inline float canonical(float value) { return value == value ? value : __builtin_nanf(""); }
inline double canonical(double value) { return value == value ? value : __builtin_nan(""); }
inline std::int32_t canonical(std::int32_t value) { return value; }
inline std::int64_t canonical(std::int64_t value) { return value; }

struct Identity {
  template <typename T>
  T operator()(T value) const {
    return value;
  }
};

template <typename T>
struct Multiply {
  T factor;
  T operator()(T value) const { return value * factor; }
};

template <typename T>
struct Divide {
  T divisor;
  T operator()(T value) const { return value / divisor; }
};

// Truncates toward zero; what does not fit becomes the nearest value that does.
template <typename T>
struct ThroughDouble {
  double factor;
  double divisor;
  T operator()(T value) const {
    constexpr T highest = static_cast<T>((std::uint64_t{1} << (sizeof(T) * 8 - 1)) - 1);
    constexpr T lowest = -highest - 1;
    const double scaled = static_cast<double>(value) * factor / divisor;
    if (scaled >= -static_cast<double>(lowest)) return highest;
    if (scaled < static_cast<double>(lowest)) return lowest;
    return scaled == scaled ? static_cast<T>(scaled) : T{0};
  }
};

// Calls `body` with the cheapest function object that scales a T as `scale` says.
template <typename T, typename Body>
void with_scaling(Scale scale, Body body) {
  if (scale.identity()) {
    body(Identity{});
  } else if constexpr (static_cast<T>(0.5) != T{0}) {
    body(Multiply<T>{static_cast<T>(scale.factor / static_cast<double>(scale.divisor))});
  } else if (scale.factor == 1.0) {
    body(Divide<T>{static_cast<T>(scale.divisor)});
  } else {
    body(ThroughDouble<T>{scale.factor, static_cast<double>(scale.divisor)});
  }
}

template <typename T, typename Finish>
void map(T* dst, const T* a, std::size_t count, Finish finish) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) dst[i] = finish(a[i]);
}

template <typename T, typename Finish>
void combine(T* dst, const T* a, const T* b, std::size_t count, Finish finish) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) dst[i] = canonical(finish(add(a[i], b[i])));
}

template <typename T, typename Finish>
void combine(T* dst, const T* a, const T* b, const T* c, std::size_t count, Finish finish) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) dst[i] = canonical(finish(add(add(a[i], b[i]), c[i])));
}

// Sums in blocks that stay in the first-level cache; `dst` may be one of the sources, so partial
// sums go to a buffer of their own and only the last addition writes to it.
template <typename T, typename Finish>
void sum_typed(T* dst, const std::byte* const* sources, int n, std::size_t count, Finish finish) {
  const auto source = [&](int r) { return reinterpret_cast<const T*>(sources[r]); };
  if (n == 1) return map(dst, source(0), count, finish);
  if (n == 2) return combine(dst, source(0), source(1), count, finish);
  if (n == 3) return combine(dst, source(0), source(1), source(2), count, finish);
  constexpr std::size_t kBlock = 4096 / sizeof(T);
  alignas(64) T partial[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t size = count - at < kBlock ? count - at : kBlock;
    combine(partial, source(0) + at, source(1) + at, size, Identity{});
    int r = 2;
    for (; r + 2 < n; ++r) combine(partial, partial, source(r) + at, size, Identity{});
    combine(dst + at, partial, source(r) + at, source(r + 1) + at, size, finish);
  }
}

template <typename T>
void sum_as(std::byte* dst, const std::byte* const* sources, int n, std::size_t count,
            Scale scale) {
  with_scaling<T>(
      scale, [&](auto finish) { sum_typed(reinterpret_cast<T*>(dst), sources, n, count, finish); });
}

template <typename T>
void scale_as(std::byte* dst, const std::byte* src, std::size_t count, Scale scale) {
  with_scaling<T>(scale, [&](auto finish) {
    map(reinterpret_cast<T*>(dst), reinterpret_cast<const T*>(src), count, finish);
  });
}

void sum(DType dtype, std::byte* dst, const std::byte* const* sources, int n, std::size_t count,
         Scale scale) {
  switch (dtype) {
    case DType::kFloat32:
      return sum_as<float>(dst, sources, n, count, scale);
    case DType::kFloat64:
      return sum_as<double>(dst, sources, n, count, scale);
    case DType::kInt32:
      return sum_as<std::int32_t>(dst, sources, n, count, scale);
    case DType::kInt64:
      return sum_as<std::int64_t>(dst, sources, n, count, scale);
    default:
      __builtin_trap();  // the engine refused the type at submission
  }
}

void scale(DType dtype, std::byte* dst, const std::byte* src, std::size_t count, Scale by) {
  switch (dtype) {
    case DType::kFloat32:
      return scale_as<float>(dst, src, count, by);
    case DType::kFloat64:
      return scale_as<double>(dst, src, count, by);
    case DType::kInt32:
      return scale_as<std::int32_t>(dst, src, count, by);
    case DType::kInt64:
      return scale_as<std::int64_t>(dst, src, count, by);
    default:
      __builtin_trap();
  }
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {KHOROVOD_STRING(KHOROVOD_ISA), sum, scale};

}  // namespace khorovod::KHOROVOD_ISA
