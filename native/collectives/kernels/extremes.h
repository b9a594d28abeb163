// Minimum and maximum of halves that are not scaled: one of the operands is the result, so they are
// compared as integers and never widened. Part of kernels.cc; see its first comment.
#pragma once

#include "collectives/kernels/halves.h"

namespace khorovod::KHOROVOD_ISA {

namespace {

// A half, in reductions that pick one.
template <typename Half>
struct Picked {
  Half half;
};
template <typename T>
inline constexpr bool kIsPicked = false;
template <typename Half>
inline constexpr bool kIsPicked<Picked<Half>> = true;

// Integers in the order of the halves, the two zeros equal; NaN lies beyond the infinities. The
// minimum is the maximum in the opposite order.
template <typename Operation>
inline Shorts rank_of(Shorts halves) {
  const Shorts sign = halves >> 15;  // 0 or -1: to negate, flip all bits and subtract it
  const Shorts flipped = (halves & kShortMagnitude) ^ sign;
  return Operation::apply(0, 1) == 1 ? flipped - sign : sign - flipped;
}

// The best so far, the first of equals; its rank; and the worst rank, which is a NaN's if one of
// the other sign than that of the best was among them.
template <typename Operation>
struct Best {
  Shorts halves;
  Shorts rank;
  Shorts worst;

  void start(Shorts first) {
    halves = first;
    rank = worst = rank_of<Operation>(first);
  }

  void offer(Shorts other) {
    const Shorts others = rank_of<Operation>(other);
    halves = others > rank ? other : halves;
    rank = others > rank ? others : rank;
    worst = others < worst ? others : worst;
  }

  template <typename Half>
  Shorts result() const {
    const Shorts nan = (rank > Half::kInfinity) | (-worst > Half::kInfinity);
    return nan ? all<Shorts>(Half::kNan) : halves;
  }
};

inline Shorts load_shorts(const void* from, std::size_t bytes) {
  Shorts halves = {};
  __builtin_memcpy(&halves, from, bytes);
  return halves;
}

template <int kCount, typename Operation, typename Half>
void fold_picked(Picked<Half>* out, const Picked<Half>* first, const Picked<Half>* const* rest,
                 std::size_t count) {
  const Picked<Half>* const second = kCount > 1 ? rest[0] : nullptr;
  const Picked<Half>* const third = kCount > 2 ? rest[1] : nullptr;
  const Picked<Half>* const fourth = kCount > 3 ? rest[2] : nullptr;
  const auto pick = [&](std::size_t i, std::size_t bytes) __attribute__((always_inline)) {
    Best<Operation> best;
    best.start(load_shorts(first + i, bytes));
    if constexpr (kCount > 1) best.offer(load_shorts(second + i, bytes));
    if constexpr (kCount > 2) best.offer(load_shorts(third + i, bytes));
    if constexpr (kCount > 3) best.offer(load_shorts(fourth + i, bytes));
    const Shorts result = best.template result<Half>();
    __builtin_memcpy(out + i, &result, bytes);
  };
  std::size_t i = 0;
  for (; i + kPair <= count; i += kPair) pick(i, kVectorBytes);
  if (i < count) pick(i, (count - i) * sizeof(Half));
}

}  // namespace

}  // namespace khorovod::KHOROVOD_ISA
