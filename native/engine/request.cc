#include "engine/request.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace khorovod {

namespace {

std::string list_text(const std::vector<std::int64_t>& values) {
  std::string text = "[";
  for (const auto value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

// New process sets, or the one to remove.
std::string sets_text(const Request& r) {
  if (r.kind != OpKind::kAddProcessSets) return list_text(r.numbers);
  std::string text;
  for (const auto& ranks : new_sets(r, std::numeric_limits<int>::max())) {
    text += (text.empty() ? "" : " and ") + list_text({ranks.begin(), ranks.end()});
  }
  return text;
}

// One side of a disagreement.
struct Side {
  const Request& request;
  int rank;
};

std::string differ(const std::string& what, Side a, const std::string& a_value, Side b,
                   const std::string& b_value) {
  return "Mismatched " + what + " for tensor '" + a.request.label() + "': rank " +
         std::to_string(a.rank) + " has " + a_value + ", rank " + std::to_string(b.rank) + " has " +
         b_value + ". All ranks must submit the same operation under the same name.";
}

std::string scales_text(const Request& r) {
  return "prescale " + std::to_string(r.prescale) + " and postscale " + std::to_string(r.postscale);
}

std::string group_text(const Request& r) {
  return r.grouped ? "a group of " + std::to_string(r.tensors.size()) + " tensors" : "one tensor";
}

const char* compression_name(Compression compression) {
  constexpr const char* names[kCompressionCount] = {"no compression", "fp16", "bf16"};
  return names[static_cast<int>(compression)];
}

const char* place_name(Handed handed) {
  constexpr const char* names[kHandedCount] = {
      "a tensor on the CPU", "a tensor on the CPU, for the torch plane", "a tensor on a GPU"};
  return names[static_cast<int>(handed)];
}

// In a group, which tensor.
std::string place_text(const Request& r, std::size_t i) {
  return r.grouped ? " (tensor " + std::to_string(i + 1) + " of the group)" : "";
}

bool same_shape(const Request& r, const std::vector<std::int64_t>& a,
                const std::vector<std::int64_t>& b) {
  if (!r.sizes_vary()) return a == b;
  return a.size() == b.size() && std::equal(a.begin() + 1, a.end(), b.begin() + 1);
}

}  // namespace

const char* op_name(OpKind kind) {
  constexpr const char* names[kOpKindCount] = {
      "ALLREDUCE", "BROADCAST", "ALLGATHER",       "ALLTOALL",          "REDUCESCATTER",
      "BARRIER",   "JOIN",      "ADD_PROCESS_SET", "REMOVE_PROCESS_SET"};
  return names[static_cast<int>(kind)];
}

const char* reduce_op_name(ReduceOp op) {
  constexpr const char* names[kReduceOpCount] = {"Average", "Sum", "Adasum",
                                                 "Min",     "Max", "Product"};
  return names[static_cast<int>(op)];
}

DType wire_type(DType dtype, Compression compression) {
  if (compression == Compression::kNone) return dtype;
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64) return dtype;
  return compression == Compression::kFloat16 ? DType::kFloat16 : DType::kBfloat16;
}

std::size_t TensorSpec::elements() const {
  std::size_t count = 1;
  for (const auto dim : shape) count *= static_cast<std::size_t>(dim);
  return count;
}

bool TensorSpec::can_have(std::int64_t total_rows) const {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  std::uint64_t bytes = 0;
  return total_rows >= 0 &&
         !__builtin_mul_overflow(static_cast<std::uint64_t>(total_rows),
                                 row_elements() * dtype_size(dtype), &bytes) &&
         bytes <= kMost;
}

std::size_t TensorSpec::row_elements() const {
  std::size_t count = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) count *= static_cast<std::size_t>(shape[i]);
  return count;
}

std::size_t Request::bytes() const {
  std::size_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.bytes();
  return total;
}

std::string Request::label() const {
  std::string text = name;
  if (unnamed()) {  // matched by its number alone, so that a difference in kind is noticed
    text = std::string(grouped ? "grouped_" : "") + op_name(kind) + "." + name;
    for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  if (set != 0) text += " [process set " + std::to_string(set) + "]";
  return text;
}

void write_request(Writer& out, const Request& r) {
  out.u8(static_cast<std::uint8_t>(r.kind));
  out.u8(static_cast<std::uint8_t>(r.reduce));
  out.u8(static_cast<std::uint8_t>(r.compression));
  out.u8(static_cast<std::uint8_t>((r.cacheable ? 1 : 0) | (r.grouped ? 2 : 0) |
                                   static_cast<int>(r.handed) * 4));
  out.varint(r.set);
  out.varint(static_cast<std::uint32_t>(r.root));
  out.f64(r.prescale);
  out.f64(r.postscale);
  out.varint(r.tensors.size());
  for (const TensorSpec& tensor : r.tensors) {
    out.u8(static_cast<std::uint8_t>(tensor.dtype));
    out.varint(tensor.shape.size());
    for (const auto dim : tensor.shape) out.varint(static_cast<std::uint64_t>(dim));
  }
  out.varint(r.numbers.size());
  for (const auto number : r.numbers) out.varint(static_cast<std::uint64_t>(number));
  out.string(r.name);
}

namespace {

// All of a request's tensors together; no machine has as much, far from an overflow.
constexpr std::uint64_t kLargestTensors = std::uint64_t{1} << 62;

bool read_number(Reader& in, std::int64_t& number) {
  const std::uint64_t value = in.varint();
  number = static_cast<std::int64_t>(value);
  return value <= std::numeric_limits<std::int64_t>::max();
}

// `total` is the size of all tensors so far.
bool read_tensor(Reader& in, TensorSpec& tensor, std::uint64_t& total) {
  tensor.dtype = in.enumerator<DType>(kDTypeCount);
  tensor.shape.resize(in.count());
  std::uint64_t bytes = dtype_size(tensor.dtype);
  for (auto& dim : tensor.shape) {
    std::uint64_t product = 0;
    if (!read_number(in, dim)) return false;
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &product)) return false;
    bytes = product;
  }
  if (!in.ok() || bytes > kLargestTensors - total) return false;
  total += bytes;
  return true;
}

bool reduces(const Request& r) {
  return r.kind == OpKind::kAllreduce || r.kind == OpKind::kReducescatter;
}

// The kernels know no other reductions.
bool reducible(const Request& r) {
  if (!std::isfinite(r.prescale) || !std::isfinite(r.postscale)) return false;
  const bool scaled = r.prescale != 1.0 || r.postscale != 1.0;
  if (r.kind == OpKind::kReducescatter && r.reduce > ReduceOp::kSum) return false;
  return std::all_of(r.tensors.begin(), r.tensors.end(), [&](const TensorSpec& tensor) {
    if (r.reduce == ReduceOp::kAdasum) return dtype_is_float(tensor.dtype);
    const bool picks = r.reduce == ReduceOp::kMin || r.reduce == ReduceOp::kMax;
    return tensor.dtype != DType::kBool || (picks && !scaled);
  });
}

// The rows for each member are rows that the tensor has.
bool splits_fit(const Request& r) {
  std::int64_t left = r.tensors.front().rows();
  for (const auto rows : r.numbers) {
    if (rows > left) return false;
    left -= rows;
  }
  return true;
}

// What a kind of operation must have, whoever sends it.
bool well_formed(const Request& r) {
  const bool moves_tensors = r.kind <= OpKind::kReducescatter;
  if (!moves_tensors) {
    // What changes the sets, or ends a join, concerns everybody.
    return r.tensors.empty() && !r.grouped && !r.is_handed() &&
           (r.kind == OpKind::kBarrier || r.set == 0);
  }
  if (!r.grouped && r.tensors.size() != 1) return false;
  if (reduces(r) ? !reducible(r) : r.compression != Compression::kNone) return false;
  if (r.kind == OpKind::kAlltoall && r.grouped) return false;
  const bool has_rows = r.sizes_vary() || r.kind == OpKind::kReducescatter;
  if (!has_rows) return true;
  const bool divisible = std::all_of(
      r.tensors.begin(), r.tensors.end(),
      [](const TensorSpec& tensor) { return !tensor.shape.empty() && tensor.rows() <= kMostRows; });
  return divisible && (r.kind != OpKind::kAlltoall || splits_fit(r));
}

}  // namespace

bool read_request(Reader& in, Request& r) {
  r.kind = in.enumerator<OpKind>(kOpKindCount);
  r.reduce = in.enumerator<ReduceOp>(kReduceOpCount);
  r.compression = in.enumerator<Compression>(kCompressionCount);
  const std::uint8_t flags = in.u8();
  r.cacheable = (flags & 1) != 0;
  r.grouped = (flags & 2) != 0;
  r.handed = static_cast<Handed>(flags / 4);
  const std::uint64_t set = in.varint();
  const std::uint64_t root = in.varint();
  if (set > UINT32_MAX || root > INT32_MAX) return false;
  r.set = static_cast<std::uint32_t>(set);
  r.root = static_cast<std::int32_t>(root);
  r.prescale = in.f64();
  r.postscale = in.f64();
  r.tensors.resize(in.count(2));
  std::uint64_t total = 0;
  for (TensorSpec& tensor : r.tensors) {
    if (!read_tensor(in, tensor, total)) return false;
  }
  r.numbers.resize(in.count());
  for (auto& number : r.numbers) {
    if (!read_number(in, number)) return false;
  }
  r.name = in.string();
  return in.ok() && flags < 4 * kHandedCount && well_formed(r);
}

std::string mismatch(const Request& left, int rank_left, const Request& right, int rank_right) {
  const Side a{left, rank_left};
  const Side b{right, rank_right};
  const std::size_t common = std::min(left.tensors.size(), right.tensors.size());
  for (std::size_t i = 0; i < common; ++i) {
    const DType a_type = left.tensors[i].dtype;
    const DType b_type = right.tensors[i].dtype;
    if (a_type == b_type) continue;
    return differ("data types" + place_text(left, i), a, dtype_name(a_type), b, dtype_name(b_type));
  }
  if (left.kind != right.kind) {
    return differ("operations", a, op_name(left.kind), b, op_name(right.kind));
  }
  if (left.grouped != right.grouped || left.tensors.size() != right.tensors.size()) {
    return differ("group sizes", a, group_text(left), b, group_text(right));
  }
  for (std::size_t i = 0; i < common; ++i) {
    const auto& a_shape = left.tensors[i].shape;
    const auto& b_shape = right.tensors[i].shape;
    if (same_shape(left, a_shape, b_shape)) continue;
    return differ(std::string(op_name(left.kind)) + " tensor shapes" + place_text(left, i), a,
                  list_text(a_shape), b, list_text(b_shape));
  }
  if (left.prescale != right.prescale || left.postscale != right.postscale) {
    return differ("prescale and/or postscale factors", a, scales_text(left), b, scales_text(right));
  }
  if (left.compression != right.compression) {
    return differ("compression", a, compression_name(left.compression), b,
                  compression_name(right.compression));
  }
  if (left.reduce != right.reduce) {
    return differ("reduction operation", a, reduce_op_name(left.reduce), b,
                  reduce_op_name(right.reduce));
  }
  if (left.root != right.root) {
    return differ("BROADCAST root ranks", a, std::to_string(left.root), b,
                  std::to_string(right.root));
  }
  if (!left.sizes_vary() && left.kind != OpKind::kJoin && left.numbers != right.numbers) {
    return differ("process sets", a, sets_text(left), b, sets_text(right));
  }
  if (left.handed != right.handed) {
    return differ(std::string(op_name(left.kind)) + " CPU/GPU device selection", a,
                  place_name(left.handed), b, place_name(right.handed));
  }
  return "";
}

std::vector<std::vector<int>> new_sets(const Request& request, int world_size) {
  const auto& numbers = request.numbers;
  std::vector<std::vector<int>> sets;
  for (std::size_t at = 0; at < numbers.size();) {
    const auto count = static_cast<std::size_t>(numbers[at++]);
    if (count == 0 || count > numbers.size() - at) return {};
    std::vector<int>& ranks = sets.emplace_back();
    for (const std::size_t end = at + count; at < end; ++at) {
      const std::int64_t rank = numbers[at];
      const bool rises = ranks.empty() || rank > ranks.back();
      if (rank < 0 || rank >= world_size || !rises) return {};
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return sets;
}

Rows rows_of_member(std::int64_t rows, int member, int size) {
  const std::int64_t each = rows / size;
  const std::int64_t more = rows % size;
  return {each * member + std::min<std::int64_t>(member, more), each + (member < more ? 1 : 0)};
}

}  // namespace khorovod
