#include "adapters/tensorflow_tensors.h"

#include <cstring>

#include "adapters/tensorflow_handles.h"

namespace khorovod::tensorflow {

khorovod::Status add_input(OpKernelContext* context, int i, Operation& operation) {
  const StatusPtr status = new_status();
  Tensor* given = nullptr;
  api().GetInput(context, i, &given, status.get());
  const TensorPtr tensor(given);
  if (!is_ok(status)) return taken_from(status);
  TensorSpec spec{dtype_from(api().TensorType(given)), {}};
  for (int d = 0; d < api().NumDims(given); ++d) spec.shape.push_back(api().Dim(given, d));
  operation.request.tensors.push_back(std::move(spec));
  operation.parts.push_back({static_cast<const std::byte*>(api().TensorData(given)), nullptr});
  return {};
}

// TensorFlow lets the input be the output only while no handle of ours refers to it.
khorovod::Status add_like_input(OpKernelContext* context, std::size_t i, Operation& operation) {
  const TensorSpec& spec = operation.request.tensors[i];
  const StatusPtr status = new_status();
  const int candidate = static_cast<int>(i);
  int forwarded = -1;
  const TensorPtr output(api().ForwardInputOrAllocateOutput(
      context, &candidate, 1, candidate, spec.shape.data(), static_cast<int>(spec.shape.size()),
      &forwarded, status.get()));
  if (!is_ok(status)) return taken_from(status);
  operation.parts[i].out = static_cast<std::byte*>(api().TensorData(output.get()));
  return {};
}

khorovod::Status add_rows(OpKernelContext* context, std::size_t i, std::int64_t rows,
                          Operation& operation) {
  const TensorSpec& spec = operation.request.tensors[i];
  std::vector<std::int64_t> shape = spec.shape;
  shape.front() = rows;
  const std::size_t bytes =
      static_cast<std::size_t>(rows) * spec.row_elements() * dtype_size(spec.dtype);
  const StatusPtr status = new_status();
  const TensorPtr output(api().AllocateOutput(context, static_cast<int>(i), type_of(spec.dtype),
                                              shape.data(), static_cast<int>(shape.size()), bytes,
                                              status.get()));
  if (!is_ok(status)) return taken_from(status);
  operation.parts[i].out = static_cast<std::byte*>(api().TensorData(output.get()));
  return {};
}

khorovod::Status add_numbers(OpKernelContext* context, int i, const std::int64_t* shape, int dims,
                             const std::vector<std::int32_t>& numbers) {
  const std::size_t bytes = numbers.size() * sizeof(std::int32_t);
  const StatusPtr status = new_status();
  const TensorPtr output(
      api().AllocateOutput(context, i, kInt32, shape, dims, bytes, status.get()));
  if (!is_ok(status)) return taken_from(status);
  if (bytes > 0) std::memcpy(api().TensorData(output.get()), numbers.data(), bytes);
  return {};
}

khorovod::Status read_splits(OpKernelContext* context, std::vector<std::int64_t>& splits) {
  const StatusPtr status = new_status();
  Tensor* given = nullptr;
  api().GetInput(context, 1, &given, status.get());
  const TensorPtr tensor(given);
  if (!is_ok(status)) return taken_from(status);
  if (api().NumDims(given) != 1) {
    return khorovod::Status::error(Code::kInvalid,
                                   "The splits of an alltoall have one dimension, not " +
                                       std::to_string(api().NumDims(given)));
  }
  const auto* numbers = static_cast<const std::int32_t*>(api().TensorData(given));
  splits.assign(numbers, numbers + api().Dim(given, 0));
  return {};
}

}  // namespace khorovod::tensorflow
