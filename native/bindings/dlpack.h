// What we use of DLPack, the array libraries' common C interface (https://dmlc.github.io/dlpack):
// a tensor's description, and by which functions a library gives it. Only layouts; no library is
// needed to compile or load this.
#pragma once

#include <cstdint>

namespace khorovod::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCudaHost = 3, kRocmHost = 11 };
enum TypeCode : std::uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct Device {
  std::int32_t type;
  std::int32_t number;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: contiguous
  std::uint64_t byte_offset;
};

// In a capsule "dltensor", as `__dlpack__()` returns it.
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

// In a capsule "dlpack_exchange_api", the class attribute `__dlpack_c_exchange_api__`.
struct ExchangeApi {
  struct {
    std::uint32_t major;
    std::uint32_t minor;
  } version;
  ExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  // May be null. Describes `object` without taking a reference; 0, or -1 with a Python error set.
  int (*borrow)(void* object, Tensor* out);
  void* current_stream;
};
inline constexpr std::uint32_t kMajor = 1;

}  // namespace khorovod::dlpack
