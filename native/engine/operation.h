// An operation of this rank from submission to completion. Whoever waits for it holds a reference;
// the memory it names must stay valid until it is done.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/members.h"
#include "base/status.h"
#include "engine/request.h"

namespace khorovod {

// The memory of one tensor. What an output is long is known at once for some operations, for
// others when all ranks have said what they contribute: then `out` is asked for, see `allocate`.
struct Part {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

struct Operation {
  Request request;
  MembersRef members;  // of the process set
  std::vector<Part> parts;
  // Memory for the output of tensor number `part`, called when its size is known, by the thread
  // that drives. Set if `out` is not. Null: there is no memory.
  std::function<std::byte*(std::size_t part, std::size_t bytes)> allocate;
  std::function<void(const Status&)> on_done;  // called from the completion pool
  std::int64_t token =
      0;  // of a handed operation, which has no parts: what its executor knows it by

  // The outcome; valid once done.
  Status status;
  // Rows of the output of each tensor: of an allgather or reducescatter, and of an alltoall its
  // rows from each member. Of a join, the last rank and the number of
  // the next operation without a name; of new process sets, their ids.
  std::vector<std::int64_t> numbers;
  std::atomic<bool> done{false};

  // For the engine.
  std::size_t bytes = 0;  // of the inputs
  std::size_t parts_left = 0;
  Nanoseconds submitted = 0;
  Nanoseconds planned = 0;
  const char* moved_by = "";
  bool stands_in = false;          // of a rank that has joined: nobody asked for it
  std::vector<std::byte> scratch;  // memory that belongs to it

  bool is_done() const { return done.load(std::memory_order_acquire); }
};

using OperationRef = std::shared_ptr<Operation>;

}  // namespace khorovod
