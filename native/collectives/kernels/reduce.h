// Loops of the reductions. Part of kernels.cc; see its first comment.
#pragma once

#include "collectives/kernels/convert.h"
#include "collectives/kernels/extremes.h"

namespace khorovod::KHOROVOD_ISA {

namespace {

// How many vectors one loop reads at most, and how many elements a block has: its partial results
// stay in the first-level cache.
inline constexpr int kFold = 4;
template <typename Partial>
inline constexpr std::size_t kBlock = 8192 / sizeof(Partial);

// out[i] = finish(first[i] op rest[0][i] op ...), of `kCount` vectors in all.
template <int kCount, typename Operation, typename T, typename Finish>
void fold_numbers(T* out, const T* first, const T* const* rest, std::size_t count, Finish finish) {
  const T* const second = kCount > 1 ? rest[0] : nullptr;
  const T* const third = kCount > 2 ? rest[1] : nullptr;
  const T* const fourth = kCount > 3 ? rest[2] : nullptr;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    T value = first[i];
    if constexpr (kCount > 1) value = Operation::apply(value, second[i]);
    if constexpr (kCount > 2) value = Operation::apply(value, third[i]);
    if constexpr (kCount > 3) value = Operation::apply(value, fourth[i]);
    value = finish(value);
    if constexpr (kIsFloating<T>) value = canonical(value);
    out[i] = value;
  }
}

// At the end of a source there may be less than a pair. Partial results have room for a whole one.
template <typename Half>
inline Pair load_end(const Half* from, std::size_t count) {
  Half padded[kPair] = {};
  __builtin_memcpy(padded, from, count * sizeof(Half));
  return load_pair(padded);
}
inline Pair load_end(const float* from, std::size_t) { return load_pair(from); }

template <typename Half>
inline void store_end(Half* to, Pair pair, std::size_t count) {
  Half padded[kPair];
  store_pair(padded, pair);
  __builtin_memcpy(to, padded, count * sizeof(Half));
}
inline void store_end(float* to, Pair pair, std::size_t) { store_pair(to, pair); }

// So many instructions are spent on halves that the CPU does not see the next lines early enough,
// which may be in another core's cache. (Past the end of a vector it does no harm.)
template <typename Half>
inline void fetch_ahead(const Half* from) {
  __builtin_prefetch(reinterpret_cast<const char*>(from) + 1024);
}
inline void fetch_ahead(const float*) {}  // partial results: in the first-level cache

template <typename Operation>
inline Pair apply(Pair left, Pair right) {
  return {Operation::apply(left.a, right.a), Operation::apply(left.b, right.b)};
}

template <int kCount, typename Operation, typename Out, typename First, typename Half,
          typename Finish>
void fold_halves(Out* out, const First* first, const Half* const* rest, std::size_t count,
                 Finish finish) {
  const Half* const second = kCount > 1 ? rest[0] : nullptr;
  const Half* const third = kCount > 2 ? rest[1] : nullptr;
  const Half* const fourth = kCount > 3 ? rest[2] : nullptr;
  const auto fold_pair = [&](auto load) {
    Pair value = load(first);
    if constexpr (kCount > 1) value = apply<Operation>(value, load(second));
    if constexpr (kCount > 2) value = apply<Operation>(value, load(third));
    if constexpr (kCount > 3) value = apply<Operation>(value, load(fourth));
    return Pair{finish(value.a), finish(value.b)};
  };
  const auto fold_at = [&](std::size_t at) {
    return fold_pair([at](const auto* from) { return load_pair(from + at); });
  };
  std::size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    fetch_ahead(first + i);
    if constexpr (kCount > 1) fetch_ahead(second + i);
    if constexpr (kCount > 2) fetch_ahead(third + i);
    if constexpr (kCount > 3) fetch_ahead(fourth + i);
    Line line;
    for (std::size_t p = 0; p < kLine / kPair; ++p) line.pairs[p] = fold_at(i + p * kPair);
    store_line(out + i, line);
  }
  for (; i + kPair <= count; i += kPair) store_pair(out + i, fold_at(i));
  if (i == count) return;
  const std::size_t end = count - i;
  store_end(out + i, fold_pair([=](const auto* from) { return load_end(from + i, end); }), end);
}

template <int kCount, typename Operation, typename Out, typename First, typename T, typename Finish>
void fold(Out* out, const First* first, const T* const* rest, std::size_t count, Finish finish) {
  if constexpr (kIsHalf<T>) {
    fold_halves<kCount, Operation>(out, first, rest, count, finish);
  } else if constexpr (kIsPicked<T>) {
    fold_picked<kCount, Operation>(out, first, rest, count);
  } else {
    fold_numbers<kCount, Operation>(out, first, rest, count, finish);
  }
}

template <typename Operation, typename T, typename First, typename Finish>
void fold_last(T* out, const First* first, const T* const* rest, int rest_count, std::size_t count,
               Finish finish) {
  switch (rest_count) {
    case 0:
      return fold<1, Operation>(out, first, rest, count, finish);
    case 1:
      return fold<2, Operation>(out, first, rest, count, finish);
    case 2:
      return fold<3, Operation>(out, first, rest, count, finish);
    default:
      return fold<4, Operation>(out, first, rest, count, finish);
  }
}

// Writes to dst at the very end, as it may be one of the sources.
template <typename Operation, typename T, typename Finish>
void reduce_block(T* dst, const std::byte* const* sources, int n, std::size_t at, std::size_t count,
                  Finish finish) {
  const T* some[kFold];
  int next = 0;
  const auto take = [&](int wanted) {
    const int taken = wanted < n - next ? wanted : n - next;
    for (int i = 0; i < taken; ++i) some[i] = reinterpret_cast<const T*>(sources[next++]) + at;
    return taken;
  };
  const int taken = take(kFold);
  if (next == n) return fold_last<Operation>(dst, some[0], some + 1, taken - 1, count, finish);
  using Partial = typename Arithmetic<T>::Type;
  alignas(64) Partial partial[kBlock<Partial>];
  fold<kFold, Operation>(partial, some[0], some + 1, count, Identity{});
  while (n - next >= kFold) {
    take(kFold - 1);
    fold<kFold, Operation>(partial, partial, some, count, Identity{});
  }
  fold_last<Operation>(dst, partial, some, take(kFold - 1), count, finish);
}

template <typename Operation, typename T, typename Finish>
void reduce_blocks(T* dst, const std::byte* const* sources, int n, std::size_t count,
                   Finish finish) {
  if (n <= kFold) return reduce_block<Operation>(dst, sources, n, 0, count, finish);
  constexpr std::size_t block = kBlock<typename Arithmetic<T>::Type>;
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t size = count - at < block ? count - at : block;
    reduce_block<Operation>(dst + at, sources, n, at, size, finish);
  }
}

template <typename Operation, typename T>
void reduce_floating(std::byte* dst, const std::byte* const* sources, int n, std::size_t count,
                     Scale scale) {
  if constexpr (kIsHalf<T> && Operation::kPicks) {
    if (scale.identity()) {
      Picked<T>* const out = reinterpret_cast<Picked<T>*>(dst);
      return reduce_blocks<Operation>(out, sources, n, count, Identity{});
    }
  }
  with_scaling<typename Arithmetic<T>::Type>(scale, [&](auto finish) {
    reduce_blocks<Operation>(reinterpret_cast<T*>(dst), sources, n, count, finish);
  });
}

// Scales block by block, while it is in the cache: one more loop, instead of one for each operation
// and way to scale.
template <typename Operation, typename T>
void reduce_integers(std::byte* dst, const std::byte* const* sources, int n, std::size_t count,
                     Scale scale) {
  T* const out = reinterpret_cast<T*>(dst);
  if (scale.identity()) return reduce_blocks<Operation>(out, sources, n, count, Identity{});
  for (std::size_t at = 0; at < count; at += kBlock<T>) {
    const std::size_t size = count - at < kBlock<T> ? count - at : kBlock<T>;
    reduce_block<Operation>(out + at, sources, n, at, size, Identity{});
    scale_integers(out + at, out + at, size, scale);
  }
}

template <typename T, typename Operation>
void reduce_by(std::byte* dst, const std::byte* const* sources, int n, std::size_t count,
               Scale scale) {
  if constexpr (kIsHalf<T> || kIsFloating<typename Arithmetic<T>::Type>) {
    reduce_floating<Operation, T>(dst, sources, n, count, scale);
  } else {
    reduce_integers<Operation, T>(dst, sources, n, count, scale);
  }
}

template <typename T>
void reduce_as(Reduction reduction, std::byte* dst, const std::byte* const* sources, int n,
               std::size_t count, Scale scale) {
  switch (reduction) {
    case Reduction::kSum:
      return reduce_by<T, Sum>(dst, sources, n, count, scale);
    case Reduction::kMin:
      return reduce_by<T, Min>(dst, sources, n, count, scale);
    case Reduction::kMax:
      return reduce_by<T, Max>(dst, sources, n, count, scale);
    case Reduction::kProduct:
      return reduce_by<T, Product>(dst, sources, n, count, scale);
  }
}

}  // namespace

}  // namespace khorovod::KHOROVOD_ISA
