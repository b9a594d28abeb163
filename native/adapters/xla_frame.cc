#include "adapters/xla_frame.h"

#include <array>
#include <cstring>

namespace khorovod::xla {

namespace {

// In the order of DType.
constexpr DataType kTypes[kDTypeCount] = {kU8,  kS8,   kU16, kS16, kS32, kS64,
                                          kF16, kBf16, kF32, kF64, kPred};

bool find_dtype(DataType type, DType& dtype) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kTypes[i] != type) continue;
    dtype = static_cast<DType>(i);
    return true;
  }
  return false;
}

const Buffer* buffer_at(const Buffers& buffers, std::int64_t i) {
  if (i >= buffers.size || buffers.kinds[i] != kBufferArgument) return nullptr;
  return static_cast<const Buffer*>(buffers.items[i]);
}

struct Collective {
  std::string_view name;
  OpKind kind;
  bool grouped;
};

constexpr std::array kCollectives = {
    Collective{"allreduce", OpKind::kAllreduce, false},
    Collective{"grouped_allreduce", OpKind::kAllreduce, true},
    Collective{"allgather", OpKind::kAllgather, false},
    Collective{"grouped_allgather", OpKind::kAllgather, true},
    Collective{"broadcast", OpKind::kBroadcast, false},
    Collective{"alltoall", OpKind::kAlltoall, false},
    Collective{"reducescatter", OpKind::kReducescatter, false},
    Collective{"grouped_reducescatter", OpKind::kReducescatter, true},
};

}  // namespace

const void* AttributeReader::find(std::string_view name, int kind) {
  for (std::int64_t i = 0; i < attributes_.size; ++i) {
    const Span& span = *attributes_.names[i];
    if (std::string_view(span.data, span.size) != name) continue;
    if (attributes_.kinds[i] == kind) return attributes_.values[i];
    status_ = Status::error(Code::kInvalid, "The attribute " + std::string(name) +
                                                " of a compiled call is of the wrong kind");
    return nullptr;
  }
  return nullptr;
}

const void* AttributeReader::scalar(std::string_view name, DataType type) {
  const auto* found = static_cast<const Scalar*>(find(name, kScalarAttribute));
  if (found == nullptr || found->type == type) return found == nullptr ? nullptr : found->value;
  status_ =
      Status::error(Code::kInvalid,
                    "The attribute " + std::string(name) + " of a compiled call has type number " +
                        std::to_string(found->type) + ", not " + std::to_string(type));
  return nullptr;
}

std::string AttributeReader::text(std::string_view name, std::string otherwise) {
  const auto* span = static_cast<const Span*>(find(name, kStringAttribute));
  return span == nullptr ? std::move(otherwise) : std::string(span->data, span->size);
}

std::int64_t AttributeReader::number(std::string_view name, std::int64_t otherwise) {
  if (const void* value = scalar(name, kS64)) std::memcpy(&otherwise, value, sizeof otherwise);
  return otherwise;
}

double AttributeReader::factor(std::string_view name, double otherwise) {
  if (const void* value = scalar(name, kF64)) std::memcpy(&otherwise, value, sizeof otherwise);
  return otherwise;
}

std::string operation_of(const CallFrame& frame) {
  return AttributeReader(frame.attributes).text("operation", "allreduce");
}

bool read_call(const CallFrame& frame, const std::string& operation, Call& call,
               std::int64_t& links, Status& status) {
  for (const Collective& one : kCollectives) {
    if (one.name != operation) continue;
    AttributeReader attributes(frame.attributes);
    call.kind = one.kind;
    call.grouped = one.grouped;
    call.name = attributes.text("name", "");
    call.set = attributes.number("process_set", 0);
    call.reduce = attributes.number("reduce_op", static_cast<int>(ReduceOp::kSum));
    call.compression = attributes.number("compression", 0);
    call.prescale = attributes.factor("prescale", 1.0);
    call.postscale = attributes.factor("postscale", 1.0);
    call.root = attributes.number("root", 0);
    links = attributes.number("links", 0);
    status = attributes.status();
    return true;
  }
  return false;
}

Status add_arguments(const CallFrame& frame, std::int64_t links, Operation& operation) {
  for (std::int64_t i = 0; i < frame.arguments.size - links; ++i) {
    const Buffer* buffer = buffer_at(frame.arguments, i);
    TensorSpec spec;
    if (buffer == nullptr || !find_dtype(buffer->type, spec.dtype)) {
      return Status::error(Code::kInvalid,
                           "XLA gave an argument of a type that cannot travel (number " +
                               std::to_string(buffer == nullptr ? 0 : buffer->type) + ")");
    }
    spec.shape.assign(buffer->dims, buffer->dims + buffer->rank);
    operation.request.tensors.push_back(std::move(spec));
    operation.parts.push_back({static_cast<const std::byte*>(buffer->data), nullptr});
  }
  return {};
}

const Buffer* result_of(const CallFrame& frame, std::int64_t i) {
  return buffer_at(frame.results, i);
}

std::size_t bytes_of(const Buffer& buffer) {
  DType dtype;
  if (!find_dtype(buffer.type, dtype)) return 0;
  std::size_t bytes = dtype_size(dtype);
  for (std::int64_t d = 0; d < buffer.rank; ++d) bytes *= static_cast<std::size_t>(buffer.dims[d]);
  return bytes;
}

}  // namespace khorovod::xla
