// Every instruction set's kernels against plain loops, bit for bit. The halves of the reference are
// made with ldexp and by searching a table, not by the kernels' bit manipulation.
#include "collectives/kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "tests/check.h"

namespace khorovod::testing {

namespace {

using std::size_t;

__extension__ typedef __int128 Wide;  // in which no product of two elements overflows

// A 16-bit format with `kMantissa` explicit bits; its values are computed as double.
template <int kMantissa, DType kType>
struct Half {
  static constexpr int kBias = (1 << (14 - kMantissa)) - 1;
  static constexpr std::uint16_t kInfinity = 0x7fff & ~((1 << kMantissa) - 1);
  static constexpr std::uint16_t kNan = kInfinity | 1 << (kMantissa - 1);
  std::uint16_t bits;

  static double value_of(std::uint16_t bits) {
    const int mantissa = bits & ((1 << kMantissa) - 1);
    const int exponent = (bits & 0x7fff) >> kMantissa;
    double value = exponent == 0
                       ? std::ldexp(mantissa, 1 - kBias - kMantissa)
                       : std::ldexp(mantissa + (1 << kMantissa), exponent - kBias - kMantissa);
    if ((bits & 0x7fff) == kInfinity) value = std::numeric_limits<double>::infinity();
    if ((bits & 0x7fff) > kInfinity) value = std::numeric_limits<double>::quiet_NaN();
    return bits >> 15 ? -value : value;
  }

  // Every value from 0 on, and what would come after the highest if there were no infinity.
  static const std::vector<double>& table() {
    static const std::vector<double> values = [] {
      std::vector<double> all;
      for (int bits = 0; bits < kInfinity; ++bits)
        all.push_back(value_of(static_cast<std::uint16_t>(bits)));
      all.push_back(std::ldexp(1.0, kBias + 1));
      return all;
    }();
    return values;
  }

  static Half nearest(double value) {
    if (std::isnan(value)) return {kNan};
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    value = std::min(std::fabs(value), table().back());
    const auto above = std::lower_bound(table().begin(), table().end(), value);
    auto index = static_cast<int>(above - table().begin());
    if (*above != value) {
      const double up = *above - value;
      const double down = value - *(above - 1);
      if (down < up || (down == up && index % 2 == 1)) --index;
    }
    return {static_cast<std::uint16_t>(sign | index)};
  }
};
using Float16 = Half<10, DType::kFloat16>;
using Bfloat16 = Half<7, DType::kBfloat16>;

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;
template <typename T>
using Arithmetic = std::conditional_t<kIsHalf<T>, float, T>;

template <typename T>
Arithmetic<T> widened(T value) {
  if constexpr (kIsHalf<T>) {
    return static_cast<float>(T::value_of(value.bits));
  } else {
    return value;
  }
}

// To any floating type, and the one NaN; of an integer, itself.
template <typename T, typename From>
T rounded(From value) {
  if constexpr (kIsHalf<T>) {
    return T::nearest(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(value);
  } else {
    return value;
  }
}

template <typename T>
T combined(Reduction reduction, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (reduction == Reduction::kSum) return a + b;
    if (reduction == Reduction::kProduct) return a * b;
  } else {
    const Wide wide =
        reduction == Reduction::kSum ? static_cast<Wide>(a) + b : static_cast<Wide>(a) * b;
    if (reduction == Reduction::kSum || reduction == Reduction::kProduct)
      return static_cast<T>(wide);
  }
  return reduction == Reduction::kMin ? std::min(a, b) : std::max(a, b);  // of equals the first
}

template <typename T>
T scaled(T value, Scale scale) {
  if (scale.identity()) return value;
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(scale.factor / static_cast<double>(scale.divisor));
  } else {
    if (scale.factor == 1.0) return static_cast<T>(static_cast<Wide>(value) / scale.divisor);
    const double exact =
        std::trunc(static_cast<double>(value) * scale.factor / static_cast<double>(scale.divisor));
    if (std::isnan(exact)) return 0;
    const long double lowest = std::numeric_limits<T>::lowest();
    const long double highest = std::numeric_limits<T>::max();
    return static_cast<T>(std::clamp(static_cast<long double>(exact), lowest, highest));
  }
}

template <typename T>
const std::byte* bytes(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
template <typename T>
std::byte* bytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// A third are any bits at all; a third are near one another, so that sums round; the rest are the
// numbers that are special in any format: zeros, denormals, infinities, NaN.
template <typename T>
T random_value(std::mt19937_64& random) {
  T value;
  const std::uint64_t bits = random();
  std::memcpy(&value, &bits, sizeof value);
  if constexpr (kIsHalf<T> || std::is_floating_point_v<T>) {
    const auto kind = random() % 12;
    const double near = std::ldexp(static_cast<double>(random() % 4001) - 2000.0,
                                   static_cast<int>(random() % 12) - 10);
    if (kind < 4) return rounded<T>(near);
    const double specials[] = {0.0, INFINITY, NAN, 3e-8, 1e-39, 1.0};
    const double special = specials[random() % 6];
    if (kind < 6) return rounded<T>(random() % 2 ? special : -special);
  }
  return value;
}

template <typename T>
std::vector<T> random_values(std::mt19937_64& random, size_t count) {
  std::vector<T> values(count);
  for (auto& value : values) value = random_value<T>(random);
  return values;
}

template <typename T>
std::vector<T> expected_reduction(Reduction reduction, const std::vector<std::vector<T>>& inputs,
                                  Scale scale) {
  std::vector<T> out(inputs[0].size());
  for (size_t i = 0; i < out.size(); ++i) {
    auto value = widened(inputs[0][i]);
    for (size_t r = 1; r < inputs.size(); ++r)
      value = combined(reduction, value, widened(inputs[r][i]));
    out[i] = rounded<T>(scaled(value, scale));
  }
  return out;
}

template <typename T>
void check_reduction(DType dtype, Reduction reduction, std::vector<std::vector<T>> inputs,
                     Scale scale) {
  const auto expected = expected_reduction(reduction, inputs, scale);
  const size_t count = expected.size();
  const int n = static_cast<int>(inputs.size());
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(bytes(input));
  for (const Kernels* set : supported_kernels()) {
    std::vector<T> out(count);
    set->reduce(reduction, dtype, bytes(out), sources.data(), n, count, scale);
    CHECK(same_bits(out, expected));
    // The output may be any of the sources; which one, differs from case to case.
    auto& aliased = inputs[count % inputs.size()];
    const auto saved = aliased;
    set->reduce(reduction, dtype, bytes(aliased), sources.data(), n, count, scale);
    CHECK(same_bits(aliased, expected));
    aliased = saved;
    CHECK(bytes(aliased) == sources[count % inputs.size()]);
  }
}

constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kMin, Reduction::kMax,
                                     Reduction::kProduct};

template <typename T>
void check_reductions(DType dtype) {
  std::mt19937_64 random(7);
  for (const Reduction reduction : kReductions) {
    for (const size_t n : {1u, 2u, 3u, 4u, 5u, 8u}) {
      for (const size_t count : {0u, 1u, 7u, 63u, 64u, 65u, 1000u, 5000u}) {
        std::vector<std::vector<T>> inputs;
        for (size_t r = 0; r < n; ++r) inputs.push_back(random_values<T>(random, count));
        for (const Scale scale : {Scale{}, Scale{1.0, 3}, Scale{0.7, 2}})
          check_reduction(dtype, reduction, inputs, scale);
      }
    }
  }
}

template <typename T>
std::vector<T> converted(const Kernels& set, DType dtype, std::vector<T> values, Scale scale) {
  set.convert(dtype, bytes(values), dtype, bytes(values), values.size(), scale);
  return values;
}

template <typename T>
void check_scaling(DType dtype, Scale scale, std::vector<T> values, std::vector<T> expected) {
  for (const Kernels* set : supported_kernels())
    CHECK(converted(*set, dtype, values, scale) == expected);
}

template <typename To, typename From>
void check_conversion(DType to, DType from, const std::vector<From>& values, Scale scale) {
  std::vector<To> expected;
  for (const From value : values) expected.push_back(rounded<To>(scaled(widened(value), scale)));
  for (const Kernels* set : supported_kernels()) {
    std::vector<To> out(values.size());
    set->convert(to, bytes(out), from, bytes(values), values.size(), scale);
    CHECK(same_bits(out, expected));
  }
}

template <typename From>
void check_conversions_from(DType from, const std::vector<From>& values) {
  for (const Scale scale : {Scale{}, Scale{1.0, 3}, Scale{1.7, 1}}) {
    if (from != DType::kFloat16 || !scale.identity())
      check_conversion<Float16>(DType::kFloat16, from, values, scale);
    if (from != DType::kBfloat16 || !scale.identity())
      check_conversion<Bfloat16>(DType::kBfloat16, from, values, scale);
    if (from != DType::kFloat32 || !scale.identity())
      check_conversion<float>(DType::kFloat32, from, values, scale);
    if (from != DType::kFloat64 || !scale.identity())
      check_conversion<double>(DType::kFloat64, from, values, scale);
  }
}

template <typename T>
std::vector<T> every_half() {
  std::vector<T> all;
  for (int bits = 0; bits < 65536; ++bits) all.push_back({static_cast<std::uint16_t>(bits)});
  return all;
}

// Every value of the format, every tie between two, and what lies just beside them.
template <typename T, typename Real>
std::vector<Real> around_ties() {
  const auto& table = T::table();
  std::vector<Real> values;
  for (size_t i = 0; i + 1 < table.size(); ++i) {
    for (const double at : {table[i], (table[i] + table[i + 1]) / 2}) {
      const auto value = static_cast<Real>(at);
      for (const Real each :
           {value, std::nextafter(value, Real{0}), std::nextafter(value, Real{9e9f})})
        values.insert(values.end(), {each, -each});
    }
  }
  return values;
}

template <typename T>
void check_identity(DType dtype, const std::vector<T>& of_each_reduction) {
  for (const Kernels* set : supported_kernels()) {
    for (size_t r = 0; r < 4; ++r) {
      std::vector<T> out(67);
      set->fill_identity(kReductions[r], dtype, bytes(out), 66);
      std::vector<T> expected(66, of_each_reduction[r]);
      expected.push_back(T{});
      CHECK(same_bits(out, expected));
    }
  }
}

template <typename T>
void check_identity_of_integers(DType dtype) {
  using Limits = std::numeric_limits<T>;
  check_identity<T>(dtype, {0, Limits::max(), Limits::lowest(), 1});
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double lanes[8] = {};
  for (size_t i = 0; i < a.size(); ++i) lanes[i % 8] += a[i] * b[i];
  for (int step = 1; step < 8; step *= 2)
    for (int i = 0; i + step < 8; i += 2 * step) lanes[i] += lanes[i + step];
  return rounded<double>(lanes[0]);
}

template <typename T>
void check_dots(DType dtype, const std::vector<T>& a, const std::vector<T>& b) {
  const std::vector<double> wide_a(a.begin(), a.end());
  const std::vector<double> wide_b(b.begin(), b.end());
  const std::vector<double> expected{dot(wide_a, wide_a), dot(wide_a, wide_b), dot(wide_b, wide_b)};
  for (const Kernels* set : supported_kernels()) {
    const Dots dots = set->dots(dtype, bytes(a), bytes(b), a.size());
    CHECK(same_bits({dots.aa, dots.ab, dots.bb}, expected));
  }
}

template <typename T>
void check_blend(DType dtype, std::vector<T> a, std::vector<T> b) {
  const double by_a = 0.3;
  const double by_b = -1.25;
  std::vector<T> expected;
  for (size_t i = 0; i < a.size(); ++i) {
    const double left = static_cast<double>(a[i]) * by_a;
    const double right = static_cast<double>(b[i]) * by_b;
    expected.push_back(rounded<T>(left + right));
  }
  for (const Kernels* set : supported_kernels()) {
    auto out = a;
    set->blend(dtype, bytes(out), bytes(out), by_a, bytes(b), by_b, a.size());
    CHECK(same_bits(out, expected));
    out = b;
    set->blend(dtype, bytes(out), bytes(a), by_a, bytes(out), by_b, a.size());
    CHECK(same_bits(out, expected));
  }
}

template <typename T>
void check_adasum(DType dtype) {
  std::mt19937_64 random(11);
  for (const size_t count : {0u, 1u, 7u, 8u, 9u, 63u, 64u, 65u, 1000u}) {
    check_blend(dtype, random_values<T>(random, count), random_values<T>(random, count));
    check_dots(dtype, random_values<T>(random, count), random_values<T>(random, count));
    std::vector<T> a(count);
    std::vector<T> b(count);
    for (auto& value : a) value = static_cast<T>(std::ldexp(static_cast<double>(random()), -64));
    for (auto& value : b) value = static_cast<T>(std::ldexp(static_cast<double>(random()), -63));
    check_dots(dtype, a, b);
  }
}

}  // namespace

TEST(reduce_uint8) { check_reductions<std::uint8_t>(DType::kUint8); }
TEST(reduce_int8) { check_reductions<std::int8_t>(DType::kInt8); }
TEST(reduce_uint16) { check_reductions<std::uint16_t>(DType::kUint16); }
TEST(reduce_int16) { check_reductions<std::int16_t>(DType::kInt16); }
TEST(reduce_int32) { check_reductions<std::int32_t>(DType::kInt32); }
TEST(reduce_int64) { check_reductions<std::int64_t>(DType::kInt64); }
TEST(reduce_float16) { check_reductions<Float16>(DType::kFloat16); }
TEST(reduce_bfloat16) { check_reductions<Bfloat16>(DType::kBfloat16); }
TEST(reduce_float32) { check_reductions<float>(DType::kFloat32); }
TEST(reduce_float64) { check_reductions<double>(DType::kFloat64); }

TEST(reduce_bool) {
  std::mt19937_64 random(5);
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    std::vector<std::vector<std::uint8_t>> inputs(3, std::vector<std::uint8_t>(300));
    for (auto& input : inputs)
      for (auto& value : input) value = random() % 2;
    check_reduction(DType::kBool, reduction, inputs, {});
  }
}

TEST(integers_divide_exactly_and_toward_zero) {
  const std::int64_t big = std::numeric_limits<std::int64_t>::max();
  check_scaling<std::int64_t>(DType::kInt64, {1.0, 2}, {7, -7, big, 49}, {3, -3, big / 2, 24});
  check_scaling<std::int32_t>(DType::kInt32, {1.0, 49}, {49, -49, 48}, {1, -1, 0});
  check_scaling<std::int8_t>(DType::kInt8, {1.0, 300}, {127, -128, 5}, {0, 0, 0});
  check_scaling<std::uint16_t>(DType::kUint16, {1.0, 40000}, {65535, 39999}, {1, 0});
}

TEST(small_integers_divide_exactly_by_every_divisor) {
  std::vector<std::uint16_t> values(65536);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  for (std::int64_t divisor = 2; divisor < 70'000; divisor += 1 + divisor / 8) {
    const auto out = converted(kernels(), DType::kUint16, values, {1.0, divisor});
    for (size_t i = 0; i < out.size(); ++i) CHECK(out[i] == static_cast<std::int64_t>(i) / divisor);
  }
}

TEST(integers_scale_through_double_and_saturate) {
  const std::int32_t top = std::numeric_limits<std::int32_t>::max();
  const std::int32_t bottom = std::numeric_limits<std::int32_t>::min();
  check_scaling<std::int32_t>(DType::kInt32, {1.5, 1}, {3, -3, 1'500'000'000, -1'500'000'000},
                              {4, -4, top, bottom});
  check_scaling<std::int32_t>(DType::kInt32, {0.5, 4}, {10, -10}, {1, -1});
  check_scaling<std::uint8_t>(DType::kUint8, {-1.5, 1}, {0, 1, 200}, {0, 0, 0});
  check_scaling<std::uint8_t>(DType::kUint8, {1.5, 1}, {170, 171, 255}, {255, 255, 255});
  check_scaling<std::int8_t>(DType::kInt8, {NAN, 1}, {1, -1}, {0, 0});
}

TEST(floats_multiply_once_in_their_own_type) {
  const float third = static_cast<float>(1.0 / 3.0);
  check_scaling<float>(DType::kFloat32, {1.0, 3}, {1.0f, 2.5f}, {1.0f * third, 2.5f * third});
}

TEST(of_equal_zeros_the_first_stays) {
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    for (const float first : {0.0f, -0.0f}) {
      const std::vector<std::vector<float>> inputs{std::vector<float>(37, first),
                                                   std::vector<float>(37, -first)};
      check_reduction(DType::kFloat32, reduction, inputs, {});
      CHECK(same_bits(expected_reduction(reduction, inputs, {}), inputs[0]));
    }
  }
}

TEST(every_half_widens_exactly) {
  CHECK_EQ(Float16::value_of(0x3c01), 1.0 + std::ldexp(1.0, -10));
  CHECK_EQ(Bfloat16::value_of(0x3f81), 1.0 + std::ldexp(1.0, -7));
  check_conversions_from(DType::kFloat16, every_half<Float16>());
  check_conversions_from(DType::kBfloat16, every_half<Bfloat16>());
}

TEST(halves_round_to_nearest_even) {
  check_conversions_from(DType::kFloat32, around_ties<Float16, float>());
  check_conversions_from(DType::kFloat32, around_ties<Bfloat16, float>());
  check_conversions_from(DType::kFloat64, around_ties<Float16, double>());
  check_conversions_from(DType::kFloat64, around_ties<Bfloat16, double>());
}

TEST(doubles_are_rounded_to_halves_once) {
  const std::vector<double> values{1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-40, 1e300, 1e-300,
                                   65520,       65519.99999999};
  const std::vector<std::uint16_t> expected{0x3c00, 0x3c01, 0x7c00, 0, 0x7c00, 0x7bff};
  for (const Kernels* set : supported_kernels()) {
    std::vector<std::uint16_t> out(values.size());
    set->convert(DType::kFloat16, bytes(out), DType::kFloat64, bytes(values), values.size(), {});
    CHECK(out == expected);
  }
}

TEST(any_bits_convert) {
  std::mt19937_64 random(3);
  check_conversions_from(DType::kFloat32, random_values<float>(random, 50'001));
  check_conversions_from(DType::kFloat64, random_values<double>(random, 50'001));
}

TEST(a_copy_keeps_every_bit) {
  const auto halves = every_half<Float16>();
  const std::vector<std::uint8_t> bools{0, 1, 1};
  for (const Kernels* set : supported_kernels()) {
    CHECK(same_bits(converted(*set, DType::kFloat16, halves, {}), halves));
    CHECK(converted(*set, DType::kBool, bools, {}) == bools);
  }
}

TEST(identities_of_the_reductions) {
  check_identity_of_integers<std::uint8_t>(DType::kUint8);
  check_identity_of_integers<std::int8_t>(DType::kInt8);
  check_identity_of_integers<std::uint16_t>(DType::kUint16);
  check_identity_of_integers<std::int16_t>(DType::kInt16);
  check_identity_of_integers<std::int32_t>(DType::kInt32);
  check_identity_of_integers<std::int64_t>(DType::kInt64);
  check_identity<std::uint8_t>(DType::kBool, {0, 1, 0, 1});
  check_identity<float>(DType::kFloat32, {0, INFINITY, -INFINITY, 1});
  check_identity<double>(DType::kFloat64, {0, INFINITY, -INFINITY, 1});
  check_identity<std::uint16_t>(DType::kFloat16, {0, 0x7c00, 0xfc00, 0x3c00});
  check_identity<std::uint16_t>(DType::kBfloat16, {0, 0x7f80, 0xff80, 0x3f80});
}

TEST(adasum_float32) { check_adasum<float>(DType::kFloat32); }
TEST(adasum_float64) { check_adasum<double>(DType::kFloat64); }

}  // namespace khorovod::testing

TEST_MAIN()
