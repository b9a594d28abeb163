// Element types that travel, their sizes and their names in messages to users.
#pragma once

#include <cstddef>
#include <cstdint>

namespace khorovod {

enum class DType : std::uint8_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kBool,
};
inline constexpr int kDTypeCount = 11;

constexpr std::size_t dtype_size(DType dtype) {
  constexpr std::size_t sizes[kDTypeCount] = {1, 1, 2, 2, 4, 8, 2, 2, 4, 8, 1};
  return sizes[static_cast<int>(dtype)];
}

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* names[kDTypeCount] = {"uint8",   "int8",    "uint16",  "int16",
                                              "int32",   "int64",   "float16", "bfloat16",
                                              "float32", "float64", "bool"};
  return names[static_cast<int>(dtype)];
}

constexpr bool dtype_is_float(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

}  // namespace khorovod
