// Operations of a rank that is alone, in its world or its process set.
#include <cstring>

#include "base/float_environment.h"
#include "engine/engine.h"
#include "engine/reduction.h"

namespace khorovod {

namespace {

// With one rank every reduction is the tensor itself, scaled; through the type it would travel in.
void reduce_alone(const Request& request, const TensorSpec& tensor, const std::byte* in,
                  std::byte* out) {
  const DType wire = wire_type(tensor.dtype, request.compression);
  const Scale prescale = prescale_of(request);
  const Scale postscale = postscale_of(request, 1);
  const std::size_t count = tensor.elements();
  if (wire == tensor.dtype) {
    if (prescale.identity() && postscale.identity()) {
      if (out != in) std::memcpy(out, in, tensor.bytes());
      return;
    }
    kernels().convert(wire, out, wire, in, count, prescale);
    kernels().convert(wire, out, wire, out, count, postscale);
    return;
  }
  std::vector<std::byte> travelling(count * dtype_size(wire));
  kernels().convert(wire, travelling.data(), tensor.dtype, in, count, prescale);
  kernels().convert(wire, travelling.data(), wire, travelling.data(), count, postscale);
  kernels().convert(tensor.dtype, out, wire, travelling.data(), count, {});
}

}  // namespace

// Called with the submit mutex held.
Status Engine::run_alone(Operation& op) {
  const Request& request = op.request;
  if (request.is_handed()) return {};  // whoever has the tensors needs nobody
  const FloatEnvironment ieee;
  if (request.kind == OpKind::kJoin) op.numbers = {world_.rank, request.numbers.front()};
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorSpec& tensor = request.tensors[i];
    std::size_t bytes = tensor.bytes();
    if (request.kind == OpKind::kAlltoall) {
      op.numbers = request.numbers;
      bytes = static_cast<std::size_t>(op.numbers.front()) * tensor.row_elements() *
              dtype_size(tensor.dtype);
    } else if (request.kind == OpKind::kAllgather || request.kind == OpKind::kReducescatter) {
      op.numbers.push_back(tensor.rows());
    }
    if (bytes == 0) continue;
    Part& part = op.parts[i];
    if (part.out == nullptr && op.allocate) part.out = op.allocate(i, bytes);
    if (part.out == nullptr) {
      return Status::error(Code::kInternal, "there is no memory for the " + std::to_string(bytes) +
                                                " bytes of the result of '" + request.label() +
                                                "'");
    }
    if (request.kind == OpKind::kAllreduce || request.kind == OpKind::kReducescatter) {
      reduce_alone(request, tensor, part.in, part.out);
    } else if (part.out != part.in) {
      std::memcpy(part.out, part.in, bytes);
    }
  }
  return {};
}

}  // namespace khorovod
