// What a rank asks for: the part of an operation that the ranks of a process set must agree on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/members.h"
#include "base/wire.h"

namespace khorovod {

enum class OpKind : std::uint8_t {
  kAllreduce,
  kBroadcast,
  kAllgather,
  kAlltoall,
  kReducescatter,
  kBarrier,
  kJoin,
  kAddProcessSets,
  kRemoveProcessSet,
};
inline constexpr int kOpKindCount = 9;
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

// As what type floats of 32 and 64 bits travel. The numbers are known to Python.
enum class Compression : std::uint8_t { kNone = 0, kFloat16 = 1, kBfloat16 = 2 };
inline constexpr int kCompressionCount = 3;
DType wire_type(DType dtype, Compression compression);

// Who moves the tensors: the engine, or the framework to which the engine hands them, because they
// are on a device of its own or because it was asked for.
enum class Handed : std::uint8_t { kNo = 0, kOnCpu = 1, kOnGpu = 2 };
inline constexpr int kHandedCount = 3;

// More rows than that are no tensor that memory could hold, but they may be of no bytes, and their
// sums and products must not overflow.
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 44;

struct TensorSpec {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;

  bool operator==(const TensorSpec&) const = default;
  std::size_t elements() const;
  std::size_t bytes() const { return elements() * dtype_size(dtype); }
  // Of a tensor with at least one dimension.
  std::int64_t rows() const { return shape.front(); }
  std::size_t row_elements() const;
  // Whether a result of so many of these rows is one that memory could hold.
  bool can_have(std::int64_t total_rows) const;
};

struct Request {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp reduce = ReduceOp::kSum;
  Compression compression = Compression::kNone;
  bool cacheable = true;  // its name will come again
  bool grouped = false;   // the tensors came as a group; else there is at most one
  Handed handed = Handed::kNo;
  std::uint32_t set = 0;  // the process set
  std::int32_t root = 0;  // of a broadcast: a rank of the world
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<TensorSpec> tensors;
  // Of an alltoall, the rows for each member; of new process sets, for each of them the number of
  // its ranks and the ranks; of a set to be removed, its id; of a join, the number of the rank's
  // next operation without a name.
  std::vector<std::int64_t> numbers;
  std::string name;  // unique in the process set

  bool operator==(const Request&) const = default;

  bool is_handed() const { return handed != Handed::kNo; }
  std::size_t bytes() const;
  // Whether ranks may differ in the first dimension (and in the rows that they send to whom).
  bool sizes_vary() const { return kind == OpKind::kAllgather || kind == OpKind::kAlltoall; }
  // Operations without a name are counted: this one, number so and so.
  static std::string unnamed_name(std::int64_t number) { return kUnnamed + std::to_string(number); }
  bool unnamed() const { return !cacheable && name.starts_with(kUnnamed); }
  // What messages to users call it.
  std::string label() const;

 private:
  static constexpr const char* kUnnamed = "noname.";
};

void write_request(Writer& out, const Request& request);
// False if no correct peer can have sent it.
bool read_request(Reader& in, Request& request);

// "" if the two agree, else a sentence that names both sides and both ranks. Checked in the order
// type, operation, group, shape, scale factors, compression, reduction, root, numbers, device.
std::string mismatch(const Request& a, int rank_a, const Request& b, int rank_b);

// The ranks of the process sets that a request would add; empty if they make no sense.
std::vector<std::vector<int>> new_sets(const Request& request, int world_size);

// The rows of a tensor that a member gets from a reducescatter.
struct Rows {
  std::int64_t begin;
  std::int64_t count;
};
Rows rows_of_member(std::int64_t rows, int member, int size);

}  // namespace khorovod
