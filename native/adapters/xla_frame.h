// What XLA hands to a call, as values: attributes, and buffers as the parts of an operation. Reads
// only what is there; what is wrong is an error for the user.
#pragma once

#include <string>
#include <string_view>

#include "adapters/call.h"
#include "adapters/xla_ffi.h"

namespace khorovod::xla {

// Attributes by name. The first that is of another kind than expected is the error.
class AttributeReader {
 public:
  explicit AttributeReader(const Attributes& attributes) : attributes_(attributes) {}

  std::string text(std::string_view name, std::string otherwise);
  std::int64_t number(std::string_view name, std::int64_t otherwise);
  double factor(std::string_view name, double otherwise);
  const Status& status() const { return status_; }

 private:
  const void* find(std::string_view name, int kind);
  const void* scalar(std::string_view name, DataType type);

  const Attributes& attributes_;
  Status status_;
};

// "allreduce", or what the attribute `operation` says.
std::string operation_of(const CallFrame& frame);

// The attributes of a collective operation; false if `operation` is the name of none. The last
// `links` arguments and results are no tensors: they make one call wait for another.
bool read_call(const CallFrame& frame, const std::string& operation, Call& call,
               std::int64_t& links, Status& status);

// The arguments as inputs.
Status add_arguments(const CallFrame& frame, std::int64_t links, Operation& operation);

// A result; null if there is no such buffer.
const Buffer* result_of(const CallFrame& frame, std::int64_t i);
std::size_t bytes_of(const Buffer& buffer);  // 0 if its type is none of ours

}  // namespace khorovod::xla
