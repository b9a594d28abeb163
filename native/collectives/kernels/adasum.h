// The vector arithmetic of Adasum, in double. Part of kernels.cc; see its first comment.
#pragma once

#include "collectives/kernels/halves.h"

namespace khorovod::KHOROVOD_ISA {

namespace {

inline constexpr std::size_t kLanes = 8;
inline constexpr std::size_t kPart = kVectorBytes / sizeof(double);  // lanes of one vector
typedef double Doubles __attribute__((vector_size(kVectorBytes)));

struct Lanes {
  Doubles parts[kLanes / kPart];
};

template <typename T>
inline Lanes load_lanes(const T* from) {
  typedef T Narrow __attribute__((vector_size(kPart * sizeof(T))));
  Lanes lanes;
  for (std::size_t p = 0; p < kLanes / kPart; ++p) {
    Narrow narrow;
    __builtin_memcpy(&narrow, from + p * kPart, sizeof narrow);
    lanes.parts[p] = __builtin_convertvector(narrow, Doubles);
  }
  return lanes;
}

inline void add_products(Lanes& sums, const Lanes& a, const Lanes& b) {
  for (std::size_t p = 0; p < kLanes / kPart; ++p) sums.parts[p] += a.parts[p] * b.parts[p];
}

inline double total(const Lanes& lanes) {
  double l[kLanes];
  __builtin_memcpy(l, &lanes, sizeof l);
  return canonical(((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7])));
}

template <typename T>
Dots dots_as(const std::byte* a_bytes, const std::byte* b_bytes, std::size_t count) {
  const T* const a = reinterpret_cast<const T*>(a_bytes);
  const T* const b = reinterpret_cast<const T*>(b_bytes);
  Lanes aa = {};
  Lanes ab = {};
  Lanes bb = {};
  const auto add = [&](const T* a_at, const T* b_at) {
    const Lanes a_lanes = load_lanes(a_at);
    const Lanes b_lanes = load_lanes(b_at);
    add_products(aa, a_lanes, a_lanes);
    add_products(ab, a_lanes, b_lanes);
    add_products(bb, b_lanes, b_lanes);
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) add(a + i, b + i);
  if (i < count) {  // zeros change no lane: none is ever -0
    T a_end[kLanes] = {};
    T b_end[kLanes] = {};
    __builtin_memcpy(a_end, a + i, (count - i) * sizeof(T));
    __builtin_memcpy(b_end, b + i, (count - i) * sizeof(T));
    add(a_end, b_end);
  }
  return {total(aa), total(ab), total(bb)};
}

template <typename T>
void blend_as(std::byte* dst, const std::byte* a, double by_a, const std::byte* b, double by_b,
              std::size_t count) {
  T* const out = reinterpret_cast<T*>(dst);
  const T* const left = reinterpret_cast<const T*>(a);
  const T* const right = reinterpret_cast<const T*>(b);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i)
    store(out + i, static_cast<double>(left[i]) * by_a + static_cast<double>(right[i]) * by_b);
}

}  // namespace

}  // namespace khorovod::KHOROVOD_ISA
