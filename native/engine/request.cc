#include "engine/request.h"

#include <limits>

namespace khorovod {

namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const auto dim : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

std::string differ(const char* what, const Request& a, int rank_a, const std::string& a_value,
                   int rank_b, const std::string& b_value) {
  return std::string("Mismatched ") + what + " for tensor '" + a.name + "': rank " +
         std::to_string(rank_a) + " has " + a_value + ", rank " + std::to_string(rank_b) + " has " +
         b_value + ". All ranks must submit the same operation under the same name.";
}

std::string scales_text(const Request& r) {
  return "prescale " + std::to_string(r.prescale) + " and postscale " + std::to_string(r.postscale);
}

}  // namespace

const char* op_name(OpKind kind) {
  constexpr const char* names[kOpKindCount] = {"ALLREDUCE", "BROADCAST", "BARRIER"};
  return names[static_cast<int>(kind)];
}

const char* reduce_op_name(ReduceOp op) {
  constexpr const char* names[kReduceOpCount] = {"Average", "Sum", "Adasum",
                                                 "Min",     "Max", "Product"};
  return names[static_cast<int>(op)];
}

std::size_t Request::bytes() const {
  std::size_t count = 1;
  for (const auto dim : shape) count *= static_cast<std::size_t>(dim);
  return count * dtype_size(dtype);
}

void write_request(Writer& out, const Request& r) {
  out.u8(static_cast<std::uint8_t>(r.kind));
  out.u8(static_cast<std::uint8_t>(r.reduce));
  out.u8(static_cast<std::uint8_t>(r.dtype));
  out.u8(r.cacheable ? 1 : 0);
  out.varint(static_cast<std::uint32_t>(r.root));
  out.f64(r.prescale);
  out.f64(r.postscale);
  out.varint(r.shape.size());
  for (const auto dim : r.shape) out.varint(static_cast<std::uint64_t>(dim));
  out.string(r.name);
}

bool read_request(Reader& in, Request& r) {
  r.kind = in.enumerator<OpKind>(kOpKindCount);
  r.reduce = in.enumerator<ReduceOp>(kReduceOpCount);
  r.dtype = in.enumerator<DType>(kDTypeCount);
  r.cacheable = in.u8() != 0;
  r.root = static_cast<std::int32_t>(in.varint());
  r.prescale = in.f64();
  r.postscale = in.f64();
  r.shape.resize(in.count());
  std::uint64_t total = dtype_size(r.dtype);
  bool sane = true;
  for (auto& dim : r.shape) {
    const std::uint64_t value = in.varint();
    std::uint64_t product = 0;
    sane = sane && value <= std::numeric_limits<std::int64_t>::max() &&
           !__builtin_mul_overflow(total, value, &product);
    total = product;
    dim = static_cast<std::int64_t>(value);
  }
  r.name = in.string();
  return in.ok() && sane;
}

std::string mismatch(const Request& a, int rank_a, const Request& b, int rank_b) {
  if (a.dtype != b.dtype) {
    return differ("data types", a, rank_a, dtype_name(a.dtype), rank_b, dtype_name(b.dtype));
  }
  if (a.kind != b.kind) {
    return differ("operations", a, rank_a, op_name(a.kind), rank_b, op_name(b.kind));
  }
  if (a.shape != b.shape) {
    return differ((std::string(op_name(a.kind)) + " tensor shapes").c_str(), a, rank_a,
                  shape_text(a.shape), rank_b, shape_text(b.shape));
  }
  if (a.prescale != b.prescale || a.postscale != b.postscale) {
    return differ("prescale and/or postscale factors", a, rank_a, scales_text(a), rank_b,
                  scales_text(b));
  }
  if (a.reduce != b.reduce) {
    return differ("reduction operation", a, rank_a, reduce_op_name(a.reduce), rank_b,
                  reduce_op_name(b.reduce));
  }
  if (a.root != b.root) {
    return differ("BROADCAST root ranks", a, rank_a, std::to_string(a.root), rank_b,
                  std::to_string(b.root));
  }
  return "";
}

}  // namespace khorovod
