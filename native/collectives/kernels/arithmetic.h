// What is done to one element: combining two values, one NaN for all, scaling. Written so that what
// floats need takes a float or a vector of floats alike. Part of kernels.cc; see its first comment.
#pragma once

#include "collectives/kernels/kernels.h"

namespace khorovod::KHOROVOD_ISA {

namespace {

template <typename T>
inline constexpr bool kIsFloating = static_cast<T>(0.5) != T{0};

// Of integers.
template <typename T>
inline constexpr T kLowest =
    static_cast<T>(-1) < T{0} ? static_cast<T>(std::uint64_t{1} << (sizeof(T) * 8 - 1)) : T{0};
template <typename T>
inline constexpr T kHighest = static_cast<T>(~kLowest<T>);

// The type to add and multiply a T in. Integers wrap, as they do in numpy, so it is unsigned, and
// not narrower than `unsigned`: it would be promoted to `int`, whose overflow is undefined.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<std::uint8_t> {
  using Type = unsigned;
};
template <>
struct Wrapping<std::int8_t> {
  using Type = unsigned;
};
template <>
struct Wrapping<std::uint16_t> {
  using Type = unsigned;
};
template <>
struct Wrapping<std::int16_t> {
  using Type = unsigned;
};
template <>
struct Wrapping<std::int32_t> {
  using Type = unsigned;
};
template <>
struct Wrapping<std::int64_t> {
  using Type = std::uint64_t;
};

struct Sum {
  static constexpr bool kPicks = false;  // the result is one of the operands
  template <typename T>
  static T apply(T a, T b) {
    using Wide = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
  }
};

struct Product {
  static constexpr bool kPicks = false;  // the result is one of the operands
  template <typename T>
  static T apply(T a, T b) {
    using Wide = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
  }
};

// Of equals the left one stays. A NaN stays on the left, and is taken from the right.
struct Min {
  static constexpr bool kPicks = true;  // the result is one of the operands
  template <typename T>
  static T apply(T a, T b) {
    const T lower = b < a ? b : a;
    return b == b ? lower : b;
  }
};

struct Max {
  static constexpr bool kPicks = true;  // the result is one of the operands
  template <typename T>
  static T apply(T a, T b) {
    const T higher = a < b ? b : a;
    return b == b ? higher : b;
  }
};

// Which operand's payload and sign a NaN result has is for the compiler to choose, and it chooses
// differently in the body and the tail of a loop. One NaN for all: the bits do not depend on where
// in a bucket an element lies.
template <typename T>
inline T canonical(T value) {
  return value == value ? value : T{} + __builtin_nanf("");
}

struct Identity {
  template <typename T>
  T operator()(T value) const {
    return value;
  }
};

template <typename Factor>
struct Multiply {
  Factor factor;
  template <typename T>
  T operator()(T value) const {
    return value * factor;
  }
};

// Exact, and not by dividing integers where that is slow: the quotient of a value of at most 16
// (32) bits lies further from the next integer than a float (double) can round it.
template <typename T>
struct Divide {
  std::int64_t divisor;
  T operator()(T value) const {
    if constexpr (sizeof(T) <= 2) {  // by way of int, or GCC does not vectorize
      const auto numerator = static_cast<float>(static_cast<int>(value));
      return static_cast<T>(static_cast<int>(numerator / static_cast<float>(divisor)));
    } else if constexpr (sizeof(T) == 4) {
      return static_cast<T>(static_cast<double>(value) / static_cast<double>(divisor));
    } else {
      return value / divisor;
    }
  }
};

// Truncates toward zero; what does not fit becomes the nearest value that does.
template <typename T>
struct ThroughDouble {
  double factor;
  double divisor;
  T operator()(T value) const {
    // The highest value plus one is a power of two, which double holds even for 64 bits.
    constexpr double too_high = static_cast<double>(kHighest<T> / 2 + 1) * 2.0;
    const double scaled = static_cast<double>(value) * factor / divisor;
    if (scaled >= too_high) return kHighest<T>;
    if (scaled < static_cast<double>(kLowest<T>)) return kLowest<T>;
    return scaled == scaled ? static_cast<T>(scaled) : T{0};
  }
};

// Calls `body` with the cheapest function object that scales a T as `scale` says. No scale is not
// a multiplication by one, which denormal numbers would make slow.
template <typename T, typename Body>
void with_scaling(Scale scale, Body body) {
  if (scale.identity()) {
    body(Identity{});
  } else if constexpr (kIsFloating<T>) {
    body(Multiply<T>{static_cast<T>(scale.factor / static_cast<double>(scale.divisor))});
  } else if (scale.factor == 1.0) {
    body(Divide<T>{scale.divisor});
  } else {
    body(ThroughDouble<T>{scale.factor, static_cast<double>(scale.divisor)});
  }
}

}  // namespace

}  // namespace khorovod::KHOROVOD_ISA
