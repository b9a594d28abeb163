// The 16-bit floating types: widening to float32, which is exact, and rounding to nearest even. One
// at a time, and a vector of them at a time. Part of kernels.cc; see its first comment.
#pragma once

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "collectives/kernels/arithmetic.h"

namespace khorovod::KHOROVOD_ISA {

namespace {

struct Float16 {
  static constexpr std::int16_t kInfinity = 0x7c00;
  static constexpr std::int16_t kNan = 0x7e00;
  std::uint16_t bits;
};
struct Bfloat16 {
  static constexpr std::int16_t kInfinity = 0x7f80;
  static constexpr std::int16_t kNan = 0x7fc0;
  std::uint16_t bits;
};

// What a T is computed in.
template <typename T>
struct Arithmetic {
  using Type = T;
};
template <>
struct Arithmetic<Float16> {
  using Type = float;
};
template <>
struct Arithmetic<Bfloat16> {
  using Type = float;
};

template <typename T>
inline constexpr bool kIsHalf = sizeof(T) < sizeof(typename Arithmetic<T>::Type);

// The widest vectors of this instruction set.
#if defined(__AVX512F__)
inline constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr std::size_t kVectorBytes = 32;
#else
inline constexpr std::size_t kVectorBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t Words __attribute__((vector_size(kVectorBytes)));
typedef std::int16_t Shorts __attribute__((vector_size(kVectorBytes)));
typedef std::uint16_t UnsignedShorts __attribute__((vector_size(kVectorBytes)));

// The functions below take a float or `Floats` (Real), and as many 32-bit words (Bits). A half
// travels in the upper half of a word. Words are signed, as SSE2 compares no others; with the sign
// bit off that makes no difference.
inline constexpr std::int32_t kSign = static_cast<std::int32_t>(0x80000000);
inline constexpr std::int32_t kUpper = static_cast<std::int32_t>(0xffff0000);
inline constexpr std::int16_t kShortMagnitude = 0x7fff;

template <typename Bits, typename Word>
inline Bits all(Word word) {
  return Bits{} + word;
}

template <typename Real, typename Bits>
inline Real widen(Bfloat16, Bits upper) {
  return __builtin_bit_cast(Real, upper);
}

// The exponent moves up by 112, that of infinity and NaN once more. A denormal half becomes
// 2^-14 + itself, from which 2^-14 is taken again.
template <typename Real, typename Bits>
inline Real widen(Float16, Bits upper) {
  const Bits magnitude = upper & 0x7fff0000;
  const Bits normal = (magnitude >> 3) + (112 << 23);
  const Bits special = normal + (112 << 23);
  const Real denormal = __builtin_bit_cast(Real, normal + (1 << 23)) - 0x1p-14f;
  const Bits finite = magnitude < 0x04000000 ? __builtin_bit_cast(Bits, denormal) : normal;
  const Bits wide = magnitude < 0x7c000000 ? finite : special;
  return __builtin_bit_cast(Real, wide | (upper & kSign));
}

// To the upper half of a word; the lower half is anything.
template <typename Bits, typename Real>
inline Bits round(Bfloat16, Real value) {
  const Bits bits = __builtin_bit_cast(Bits, canonical(value));
  return bits + 0x7fff + ((bits >> 16) & 1);  // no overflow: infinity and the NaN stay themselves
}

// Denormals are rounded by an addition: the last bit of numbers from 0.5 on is worth 2^-24, as that
// of denormal halves is. What is 2^16 or more is infinity.
template <typename Bits, typename Real>
inline Bits round(Float16, Real value) {
  const Bits bits = __builtin_bit_cast(Bits, value);
  const Bits magnitude = bits & ~kSign;
  const Bits capped = magnitude < 0x47800000 ? magnitude : all<Bits>(0x47800000);
  const Bits normal = (capped + 0xfff + ((capped >> 13) & 1) - (112 << 23)) >> 13;
  const Bits denormal =
      __builtin_bit_cast(Bits, __builtin_bit_cast(Real, magnitude) + 0.5f) - 0x3f000000;
  const Bits number = (magnitude < 0x38800000 ? denormal : normal) << 16 | (bits & kSign);
  return magnitude <= 0x7f800000 ? number : all<Bits>(0x7e000000);
}

// One value of any floating type, in the type it is computed with, and back.
inline float load(const float* from) { return *from; }
inline double load(const double* from) { return *from; }
template <typename Half>
inline float load(const Half* from) {
  return widen<float>(*from, static_cast<std::int32_t>(std::uint32_t{from->bits} << 16));
}

inline void store(float* to, float value) { *to = canonical(value); }
inline void store(double* to, double value) { *to = canonical(value); }
inline void store(float* to, double value) { *to = canonical(static_cast<float>(value)); }
inline void store(double* to, float value) { *to = canonical(static_cast<double>(value)); }
template <typename Half>
inline void store(Half* to, float value) {
  const auto bits = static_cast<std::uint32_t>(round<std::int32_t>(*to, value));
  to->bits = static_cast<std::uint16_t>(bits >> 16);
}

// By way of the float that is cut off at its last bit, and that bit set if anything was lost
// ("round to odd"): rounding that to a half cannot take for a tie what was none.
template <typename Half>
inline void store(Half* to, double value) {
  const auto nearest = static_cast<float>(value);
  const double back = nearest;
  auto bits = __builtin_bit_cast(std::int32_t, nearest);
  bits -= __builtin_fabs(back) > __builtin_fabs(value) ? 1 : 0;
  bits |= back != value ? 1 : 0;
  store(to, __builtin_bit_cast(float, bits));
}

// As many halves as a vector holds, as two vectors of floats, in whichever order is cheapest:
// `store_pair` undoes `load_pair`.
struct Pair {
  Floats a;
  Floats b;
};
inline constexpr std::size_t kPair = kVectorBytes / 2;

// Those in the lower halves of words, and those in the upper: that needs no shuffling.
template <typename Half>
inline Pair load_pair(const Half* from) {
  Words words;
  __builtin_memcpy(&words, from, sizeof words);
  return {widen<Floats>(Half{}, words << 16), widen<Floats>(Half{}, words & kUpper)};
}

template <typename Half>
inline void store_pair(Half* to, Pair pair) {
  const Words lower = (round<Words>(Half{}, pair.a) >> 16) & 0xffff;
  const Words words = lower | (round<Words>(Half{}, pair.b) & kUpper);
  __builtin_memcpy(to, &words, sizeof words);
}

// Partial results, which keep the order of the pair.
inline Pair load_pair(const float* from) {
  Floats a;
  Floats b;
  __builtin_memcpy(&a, from, sizeof a);
  __builtin_memcpy(&b, from + kPair / 2, sizeof b);
  return {a, b};
}

inline void store_pair(float* to, Pair pair) {
  __builtin_memcpy(to, &pair.a, sizeof pair.a);
  __builtin_memcpy(to + kPair / 2, &pair.b, sizeof pair.b);
}

// A cache line of halves, or as many partial results.
inline constexpr std::size_t kLine = 64 / sizeof(std::uint16_t);
struct Line {
  Pair pairs[kLine / kPair];
};

#if defined(__F16C__)
// The CPU's own conversions, of halves that lie side by side. And what vector extensions cannot say
// as shortly: whether a line has a NaN; the lower halves of one's words with the upper halves of
// the other's; a difference that is not below zero.
#if defined(__AVX512F__)
// With a mask of all lanes: GCC 12 warns of an uninitialized value in the unmasked intrinsics.
inline constexpr __mmask16 kEvery = 0xffff;

inline Floats load_vector(const Float16* from) {
  return _mm512_maskz_cvtph_ps(kEvery, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline void store_vector(Float16* to, Floats value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtps_ph(kEvery, value, _MM_FROUND_TO_NEAREST_INT));
}

inline bool any_nan(const Line& line) {
  return _mm512_cmp_ps_mask(line.pairs[0].a, line.pairs[0].b, _CMP_UNORD_Q) != 0;
}

inline Shorts join(Words lower, Words upper) {
  return reinterpret_cast<Shorts>(_mm512_mask_blend_epi16(
      0xaaaaaaaa, reinterpret_cast<__m512i>(lower), reinterpret_cast<__m512i>(upper)));
}

inline Shorts less(Shorts value, Shorts by) {
  return reinterpret_cast<Shorts>(
      _mm512_subs_epu16(reinterpret_cast<__m512i>(value), reinterpret_cast<__m512i>(by)));
}
#else
inline Floats load_vector(const Float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline void store_vector(Float16* to, Floats value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

inline bool any_nan(const Line& line) {
  const auto& [first, second] = line.pairs;
  const __m256 one = _mm256_cmp_ps(first.a, first.b, _CMP_UNORD_Q);
  const __m256 other = _mm256_cmp_ps(second.a, second.b, _CMP_UNORD_Q);
  return _mm256_movemask_ps(_mm256_or_ps(one, other)) != 0;
}

inline Shorts join(Words lower, Words upper) {
  return reinterpret_cast<Shorts>(
      _mm256_blend_epi16(reinterpret_cast<__m256i>(lower), reinterpret_cast<__m256i>(upper), 0xaa));
}

inline Shorts less(Shorts value, Shorts by) {
  return reinterpret_cast<Shorts>(
      _mm256_subs_epu16(reinterpret_cast<__m256i>(value), reinterpret_cast<__m256i>(by)));
}
#endif

inline Pair load_pair(const Float16* from) {
  return {load_vector(from), load_vector(from + kPair / 2)};
}

inline void store_numbers(Float16* to, Pair pair) {
  store_vector(to, pair.a);
  store_vector(to + kPair / 2, pair.b);
}

// Rounds after the packing, 16 bits at a time: up if what is cut off is more than half of the last
// bit, or just half and that bit is set. One less where it is not set leaves the first bit of what
// is cut off to tell. No overflow: infinity and the NaN stay themselves.
inline void store_numbers(Bfloat16* to, Pair pair) {
  const auto a = __builtin_bit_cast(Words, pair.a);
  const auto b = __builtin_bit_cast(Words, pair.b);
  const Shorts kept = join(a >> 16, b);
  const Shorts cut = less(join(a, b << 16), ~kept & 1);
  const Shorts halves = kept - (cut >> 15);  // a first bit that is set, moved on to all: -1
  __builtin_memcpy(to, &halves, sizeof halves);
}

inline void store_pair(Float16* to, Pair pair) {
  store_numbers(to, {canonical(pair.a), canonical(pair.b)});
}
inline void store_pair(Bfloat16* to, Pair pair) {
  store_numbers(to, {canonical(pair.a), canonical(pair.b)});
}

// A rare branch costs less than making every value canonical.
template <typename Half>
inline void store_half_line(Half* to, Line line) {
  if (any_nan(line)) [[unlikely]] {
    for (Pair& pair : line.pairs) pair = {canonical(pair.a), canonical(pair.b)};
  }
  for (std::size_t p = 0; p < kLine / kPair; ++p) store_numbers(to + p * kPair, line.pairs[p]);
}
inline void store_line(Float16* to, const Line& line) { store_half_line(to, line); }
inline void store_line(Bfloat16* to, const Line& line) { store_half_line(to, line); }
#else
// The same with what all CPUs have. A NaN shows in the bits that are kept: it comes from
// arithmetic, which makes it quiet, or from a bfloat16.
inline void store_pair(Bfloat16* to, Pair pair) {
  const auto a = __builtin_bit_cast(Words, pair.a);
  const auto b = __builtin_bit_cast(Words, pair.b);
  const auto kept = __builtin_bit_cast(Shorts, ((a >> 16) & ~kUpper) | (b & kUpper));
  const auto cut = __builtin_bit_cast(UnsignedShorts, (a & ~kUpper) | (b << 16));
  const auto last = __builtin_bit_cast(UnsignedShorts, kept & 1);
  const Shorts up = cut > 0x8000 - last;  // true is -1
  const Shorts nan = (kept & kShortMagnitude) > Bfloat16::kInfinity;
  const Shorts halves = nan ? all<Shorts>(Bfloat16::kNan) : kept - up;
  __builtin_memcpy(to, &halves, sizeof halves);
}
#endif

template <typename T>
inline void store_line(T* to, const Line& line) {
  for (std::size_t p = 0; p < kLine / kPair; ++p) store_pair(to + p * kPair, line.pairs[p]);
}

}  // namespace

}  // namespace khorovod::KHOROVOD_ISA
