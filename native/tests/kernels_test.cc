// Kernels against plain loops, and every instruction set against the baseline, bit for bit.
#include "collectives/kernels/kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/check.h"

namespace khorovod::testing {

namespace {

template <typename T>
std::vector<std::vector<T>> random_inputs(int ranks, std::size_t count) {
  std::mt19937_64 random(count + static_cast<std::size_t>(ranks));
  std::vector<std::vector<T>> inputs(static_cast<std::size_t>(ranks), std::vector<T>(count));
  for (auto& input : inputs) {
    for (auto& value : input) {
      if constexpr (std::is_floating_point_v<T>) {
        value = static_cast<T>(std::ldexp(static_cast<double>(random() % 2001) - 1000.0,
                                          static_cast<int>(random() % 40) - 20));
      } else {
        value = static_cast<T>(random());
      }
    }
  }
  return inputs;
}

template <typename T>
T wrapped_sum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
}

template <typename T>
void sums_in_rank_order(DType dtype) {
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    for (const std::size_t count : {1u, 7u, 64u, 1000u, 1025u, 5000u}) {
      auto inputs = random_inputs<T>(ranks, count);
      std::vector<T> expected = inputs[0];
      for (int r = 1; r < ranks; ++r) {
        for (std::size_t i = 0; i < count; ++i) {
          expected[i] = wrapped_sum(expected[i], inputs[static_cast<std::size_t>(r)][i]);
        }
      }
      std::vector<const std::byte*> sources;
      for (auto& input : inputs) sources.push_back(reinterpret_cast<std::byte*>(input.data()));
      std::vector<T> out(count);
      kernels().sum(dtype, reinterpret_cast<std::byte*>(out.data()), sources.data(), ranks, count,
                    {});
      CHECK(std::memcmp(out.data(), expected.data(), count * sizeof(T)) == 0);
      // The output may be any of the sources.
      auto& last = inputs.back();
      kernels().sum(dtype, reinterpret_cast<std::byte*>(last.data()), sources.data(), ranks, count,
                    {});
      CHECK(std::memcmp(last.data(), expected.data(), count * sizeof(T)) == 0);
    }
  }
}

template <typename T>
std::vector<T> scaled(DType dtype, std::vector<T> values, Scale scale) {
  kernels().scale(dtype, reinterpret_cast<std::byte*>(values.data()),
                  reinterpret_cast<std::byte*>(values.data()), values.size(), scale);
  return values;
}

}  // namespace

TEST(sum_float32) { sums_in_rank_order<float>(DType::kFloat32); }
TEST(sum_float64) { sums_in_rank_order<double>(DType::kFloat64); }
TEST(sum_int32_wraps) { sums_in_rank_order<std::int32_t>(DType::kInt32); }
TEST(sum_int64_wraps) { sums_in_rank_order<std::int64_t>(DType::kInt64); }

TEST(integers_divide_exactly_and_toward_zero) {
  const std::int64_t big = std::numeric_limits<std::int64_t>::max();
  CHECK((scaled<std::int64_t>(DType::kInt64, {7, -7, big, 49}, {1.0, 2}) ==
         std::vector<std::int64_t>{3, -3, big / 2, 24}));
  CHECK((scaled<std::int32_t>(DType::kInt32, {49, -49, 48}, {1.0, 49}) ==
         std::vector<std::int32_t>{1, -1, 0}));
}

TEST(integers_scale_through_double_and_saturate) {
  const std::int32_t top = std::numeric_limits<std::int32_t>::max();
  const std::int32_t bottom = std::numeric_limits<std::int32_t>::min();
  CHECK((scaled<std::int32_t>(DType::kInt32, {3, -3, 1'500'000'000, -1'500'000'000}, {1.5, 1}) ==
         std::vector<std::int32_t>{4, -4, top, bottom}));
  CHECK((scaled<std::int32_t>(DType::kInt32, {10, -10}, {0.5, 4}) ==
         std::vector<std::int32_t>{1, -1}));
}

TEST(floats_multiply_once_in_their_own_type) {
  const float third = static_cast<float>(1.0 / 3.0);
  CHECK((scaled<float>(DType::kFloat32, {1.0f, 2.5f}, {1.0, 3}) ==
         std::vector<float>{1.0f * third, 2.5f * third}));
}

TEST(special_values_pass_through) {
  const float inf = std::numeric_limits<float>::infinity();
  const float denormal = std::numeric_limits<float>::denorm_min();
  std::vector<float> a{inf, denormal, -0.0f, inf, std::nanf("")};
  std::vector<float> b{1.0f, denormal, -0.0f, -inf, 1.0f};
  const std::byte* sources[] = {reinterpret_cast<std::byte*>(a.data()),
                                reinterpret_cast<std::byte*>(b.data())};
  std::vector<float> out(a.size());
  kernels().sum(DType::kFloat32, reinterpret_cast<std::byte*>(out.data()), sources, 2, out.size(),
                {});
  CHECK_EQ(out[0], inf);
  CHECK_EQ(out[1], 2 * denormal);
  CHECK(out[2] == 0.0f && std::signbit(out[2]));
  CHECK(std::isnan(out[3]) && std::isnan(out[4]));
}

TEST(every_instruction_set_gives_the_same_bits) {
  const auto inputs = random_inputs<float>(5, 10'007);
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs)
    sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<float> first;
  for (const Kernels* set : supported_kernels()) {
    std::vector<float> out(inputs[0].size());
    set->sum(DType::kFloat32, reinterpret_cast<std::byte*>(out.data()), sources.data(), 5,
             out.size(), {0.3, 7});
    if (first.empty()) first = out;
    CHECK(std::memcmp(out.data(), first.data(), out.size() * sizeof(float)) == 0);
  }
}

}  // namespace khorovod::testing

TEST_MAIN()
