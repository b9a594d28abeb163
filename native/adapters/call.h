// A collective operation as a framework's kernel knows it: what its attributes say, and how that
// becomes a request. The same for every framework whose kernels are native.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace khorovod {

struct Call {
  OpKind kind = OpKind::kAllreduce;
  bool grouped = false;
  std::string name;  // what ranks match by; "" stands for the number of the call
  std::int64_t set = 0;
  std::int64_t reduce = 0;
  std::int64_t compression = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int64_t root = 0;

  bool reduces() const { return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter; }
};

// A graph's operations come one after the other, some microseconds apart: worth waiting for a few
// of them before the engine thread is woken, but the graph may wait for the first.
inline constexpr Nanoseconds kPatience = 50 * kMicrosecond;

// "allreduce", as the names of operations begin.
const char* prefix_of(const Call& call);

// Kind, process set and reduction: what is known before the tensors are.
Status begin(const Call& call, const Engine& engine, Operation& operation);
// What the tensors must be like; the splits are those of an alltoall.
Status check(const Call& call, const std::optional<std::vector<std::int64_t>>& splits,
             Operation& operation);
// Last, as it may count the call.
void put_name_in(Request& request, const Call& call, Engine& engine);

// Until it is done, by the caller's thread.
Status run_here(Engine& engine, const OperationRef& operation);

}  // namespace khorovod
