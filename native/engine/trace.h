// What a timeline shows, as records that ranks send to rank 0 while tracing is on: what became of
// an operation on a rank, which ranks were ready for it when, and the coordinator's cycles.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/wire.h"

namespace khorovod {

// An operation that is done on a rank. Times are of the host's monotonic clock; 0: did not happen.
struct OperationTrace {
  std::string name;
  std::string operation;  // "ALLREDUCE", ...
  std::string activity;   // what moved the data: "SHM_ALLREDUCE", ...; empty if nothing did
  std::string dtype;
  std::vector<std::int64_t> shape;
  Nanoseconds submitted = 0;
  Nanoseconds planned = 0;  // all ranks were ready, and this rank knew
  Nanoseconds started = 0;  // its data began to move
  Nanoseconds done = 0;
  bool failed = false;

  bool operator==(const OperationTrace&) const = default;
};

// When the coordinator heard that ranks are ready for an operation.
struct ReadyTrace {
  std::string name;
  std::string operation;
  std::vector<std::pair<int, Nanoseconds>> ranks;

  bool operator==(const ReadyTrace&) const = default;
};

// The coordinator began to decide.
struct CycleTrace {
  Nanoseconds at = 0;

  bool operator==(const CycleTrace&) const = default;
};

using Trace = std::variant<OperationTrace, ReadyTrace, CycleTrace>;

void write_trace(Writer& out, const OperationTrace& trace);
void write_trace(Writer& out, const ReadyTrace& trace);
void write_trace(Writer& out, const CycleTrace& trace);
void write_trace(Writer& out, const Trace& trace);
// False at bytes that make no sense.
bool read_trace(Reader& in, Trace& trace);

}  // namespace khorovod
