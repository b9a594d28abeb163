// What a rank asks for: the part of an operation that all ranks must agree on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/wire.h"

namespace khorovod {

enum class OpKind : std::uint8_t { kAllreduce, kBroadcast, kBarrier };
inline constexpr int kOpKindCount = 3;
const char* op_name(OpKind kind);  // "ALLREDUCE", ...

// The numbers are part of the Python API.
enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5
};
inline constexpr int kReduceOpCount = 6;
const char* reduce_op_name(ReduceOp op);

struct Request {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp reduce = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  bool cacheable = true;  // its name will come again
  std::int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::int64_t> shape;
  std::string name;

  bool operator==(const Request&) const = default;

  std::size_t bytes() const;
};

void write_request(Writer& out, const Request& request);
bool read_request(Reader& in, Request& request);

// "" if the two agree, else a sentence that names both sides and both ranks. Checked in the order
// type, operation, shape, scale factors, reduction, root.
std::string mismatch(const Request& a, int rank_a, const Request& b, int rank_b);

}  // namespace khorovod
