#include "engine/misuse.h"

#include <bit>
#include <cmath>
#include <string>

namespace khorovod {

namespace {

Status refuse(std::string why) { return Status::error(Code::kInvalid, std::move(why)); }

}  // namespace

Status check_members(const MembersRef& members, std::uint32_t set, int rank) {
  if (members == nullptr) {
    return refuse("There is no process set with the id " + std::to_string(set) +
                  "; register it with add_process_set() or init(process_sets=...)");
  }
  if (!members->contains(rank)) {
    return refuse("Rank " + std::to_string(rank) + " is not in process set " + std::to_string(set) +
                  "; only its members may call this");
  }
  return {};
}

Status check_rows(const Request& request, const char* operation) {
  for (const TensorSpec& tensor : request.tensors) {
    if (tensor.shape.empty()) {
      return refuse(std::string(operation) +
                    " works along the first dimension, but the tensor is a scalar; give it one, "
                    "for example with reshape(1)");
    }
    if (tensor.rows() > kMostRows) {
      return refuse(std::string(operation) + " can do at most " + std::to_string(kMostRows) +
                    " rows, not " + std::to_string(tensor.rows()));
    }
  }
  return {};
}

Status put_splits_in(Request& request, const std::optional<std::vector<std::int64_t>>& given,
                     int members) {
  const std::int64_t rows = request.tensors.front().rows();
  if (!given.has_value()) {
    if (rows % members != 0) {
      return refuse("alltoall without splits needs a first dimension that the " +
                    std::to_string(members) + " ranks can divide, not " + std::to_string(rows));
    }
    request.numbers.assign(static_cast<std::size_t>(members), rows / members);
    return {};
  }
  std::int64_t total = 0;
  for (const std::int64_t count : *given) {
    if (count < 0) return refuse("The splits of an alltoall must not be negative");
    if (count > rows - total) {
      return refuse("The splits of an alltoall add up to more than the first dimension, " +
                    std::to_string(rows));
    }
    total += count;
  }
  if (given->size() != static_cast<std::size_t>(members)) {
    return refuse("alltoall needs as many splits as there are ranks, " + std::to_string(members) +
                  ", not " + std::to_string(given->size()));
  }
  request.numbers = *given;
  return {};
}

Status put_root_in(Request& request, const Members& members, int root) {
  if (!members.contains(root)) {
    return refuse("The root rank is " + std::to_string(root) +
                  (request.set == 0
                       ? ", but the ranks are 0 to " + std::to_string(members.size() - 1)
                       : ", which is not in process set " + std::to_string(request.set) +
                             "; the root is a rank of the whole job"));
  }
  request.root = root;
  return {};
}

Status put_reduction_in(Request& request, int op, double prescale, double postscale,
                        int compression) {
  if (op < 0 || op >= kReduceOpCount) {
    return refuse("The reduction " + std::to_string(op) + " is unknown");
  }
  if (compression < 0 || compression >= kCompressionCount) {
    return refuse("The compression is unknown");
  }
  if (!std::isfinite(prescale) || !std::isfinite(postscale)) {
    return refuse("prescale_factor and postscale_factor must be finite numbers");
  }
  request.reduce = static_cast<ReduceOp>(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.compression = static_cast<Compression>(compression);
  return {};
}

Status check_reducible(const Request& request, int members) {
  const ReduceOp op = request.reduce;
  if (request.kind == OpKind::kReducescatter && op != ReduceOp::kSum && op != ReduceOp::kAverage) {
    return Status::error(Code::kAborted, std::string("reducescatter can do Sum and Average, not ") +
                                             reduce_op_name(op) +
                                             "; allreduce can, and each rank takes its rows");
  }
  if (op == ReduceOp::kAdasum && !std::has_single_bit(static_cast<unsigned>(members))) {
    return refuse("Adasum combines ranks in pairs and needs 1, 2, 4, 8, ... of them, not " +
                  std::to_string(members));
  }
  for (const TensorSpec& tensor : request.tensors) {
    if (op == ReduceOp::kAdasum && !dtype_is_float(tensor.dtype)) {
      return refuse(std::string("Adasum needs floating-point tensors, not ") +
                    dtype_name(tensor.dtype));
    }
    if (tensor.dtype != DType::kBool) continue;
    if (op != ReduceOp::kMin && op != ReduceOp::kMax) {
      return refuse(std::string(reduce_op_name(op)) +
                    " of bool has no meaning that all would expect; use Min for 'and', Max for "
                    "'or', or convert to an integer type");
    }
    if (request.prescale != 1.0 || request.postscale != 1.0) {
      return refuse("bool tensors cannot be scaled");
    }
  }
  return {};
}

}  // namespace khorovod
