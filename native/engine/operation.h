// An operation of this rank from submission to completion. Whoever waits for it holds a reference;
// the memory it names must stay valid until it is done.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "engine/request.h"

namespace khorovod {

struct Operation {
  Request request;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t bytes = 0;
  std::function<void(const Status&)> on_done;  // called from the completion pool

  Nanoseconds submitted = 0;
  Status status;  // valid once done
  std::atomic<bool> done{false};

  bool is_done() const { return done.load(std::memory_order_acquire); }
};

using OperationRef = std::shared_ptr<Operation>;

}  // namespace khorovod
