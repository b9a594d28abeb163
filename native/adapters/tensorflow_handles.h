// TensorFlow's objects as values that clean up after themselves, and our types as TensorFlow's.
#pragma once

#include <memory>
#include <string>

#include "adapters/tensorflow_api.h"
#include "base/dtype.h"
#include "base/status.h"

namespace khorovod::tensorflow {

template <auto Api::* kDelete>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    (api().*kDelete)(object);
  }
};

using StatusPtr = std::unique_ptr<Status, Deleter<&Api::DeleteStatus>>;
using TensorPtr = std::unique_ptr<Tensor, Deleter<&Api::DeleteTensor>>;
using ShapePtr = std::unique_ptr<ShapeHandle, Deleter<&Api::DeleteShapeHandle>>;

inline StatusPtr new_status() { return StatusPtr(api().NewStatus()); }
inline bool is_ok(const StatusPtr& status) { return api().GetCode(status.get()) == kOk; }

// In the order of DType.
inline constexpr DataType kTypes[kDTypeCount] = {
    kUint8, kInt8, kUint16, kInt16, kInt32, kInt64, kHalf, kBfloat16, kFloat, kDouble, kBool};

inline DataType type_of(DType dtype) { return kTypes[static_cast<int>(dtype)]; }

// Of a tensor that a kernel has got: its type constraint lets no other through.
inline DType dtype_from(DataType type) {
  int i = 0;
  while (i + 1 < kDTypeCount && kTypes[i] != type) ++i;
  return static_cast<DType>(i);
}

inline void fail(OpKernelContext* context, const khorovod::Status& why) {
  const StatusPtr status = new_status();
  api().SetStatus(status.get(), error_code(why.code), why.message.c_str());
  api().OpKernelContext_Failure(context, status.get());
}

// TensorFlow's own errors, on their way through ours: no memory, mostly.
inline khorovod::Status taken_from(const StatusPtr& status) {
  return khorovod::Status::error(Code::kInternal, api().Message(status.get()));
}

}  // namespace khorovod::tensorflow
