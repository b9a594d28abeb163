// Tracing: every rank records what becomes of its operations; rank 0 gets it all and hands it to
// the timeline's writer.
#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/engine.h"

namespace khorovod {

namespace {

// How long stopping a timeline waits for what other ranks still have.
constexpr Nanoseconds kLastTraces = kSecond;

std::string activity(const Operation& operation) {
  std::string text = operation.moved_by;
  for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  if (text.empty()) return text;
  const bool adasum = operation.request.reduce == ReduceOp::kAdasum;
  return text + (adasum ? "_ADASUM_" : "_") + op_name(operation.request.kind);
}

OperationTrace trace_of(const Operation& operation) {
  const Request& request = operation.request;
  OperationTrace record;
  record.name = request.label();
  record.operation = op_name(request.kind);
  record.activity = operation.status.ok() ? activity(operation) : "";
  if (!request.tensors.empty()) {
    record.dtype = dtype_name(request.tensors.front().dtype);
    record.shape = request.tensors.front().shape;
  }
  record.submitted = operation.submitted;
  record.planned = operation.planned;
  record.failed = !operation.status.ok();
  return record;
}

}  // namespace

void Engine::trace(const Operation& operation) {
  OperationTrace record = trace_of(operation);
  // The plane runs works one after the other: it came to this one when it was done with the last.
  record.started = std::max(operation.planned, last_done_);
  record.done = last_done_ = now_ns();
  write_trace(traces_, record);
}

// Of an operation that no other rank takes part in; with the submit mutex held.
void Engine::trace_alone(Operation& operation) {
  operation.moved_by = "LOCAL";
  operation.planned = operation.submitted;
  OperationTrace record = trace_of(operation);
  record.started = operation.submitted;
  record.done = now_ns();
  if (world_.size == 1) write_trace(alone_traces_, CycleTrace{operation.submitted});
  if (world_.rank == 0) {
    write_trace(alone_traces_, ReadyTrace{record.name, record.operation, {{0, record.submitted}}});
  }
  write_trace(alone_traces_, record);
}

void Engine::flush_traces(bool end) {
  {
    const std::lock_guard lock(submit_mutex_);
    traces_.raw(alone_traces_.view());
    alone_traces_.clear();
  }
  if (traces_.size() == 0 && !end) return;
  if (world_.rank == 0) {
    if (timeline_ != nullptr) {
      timeline_->add(0, {traces_.view().begin(), traces_.view().end()});
    }
  } else {
    outgoing_.clear();
    write_message_header(outgoing_, carried_out_);
    if (traces_.size() > 0) write_traces(outgoing_, traces_.view());
    if (end) write_traces(outgoing_, {});
    world_.link->send(0, outgoing_.view());
  }
  traces_.clear();
}

void Engine::take_traces(int peer, Bytes traces) {
  if (traces.empty()) {
    const auto at = static_cast<std::size_t>(peer);
    if (at < trace_ended_.size()) trace_ended_[at] = true;
  } else if (timeline_ != nullptr) {
    timeline_->add(peer, {traces.begin(), traces.end()});
  }
}

void Engine::set_tracing(bool on) {
  if (tracing_ && !on) flush_traces(true);
  tracing_ = on;
  tracing_alone_ = on;
}

Status Engine::start_timeline(const std::string& path, bool mark_cycles) {
  stop_timeline();
  std::unique_ptr<Timeline> opened;
  if (Status status = Timeline::open(path, mark_cycles, opened); !status.ok()) return status;
  const std::lock_guard lock(progress_);
  timeline_ = std::move(opened);
  tracing_ = tracing_alone_ = true;
  trace_ended_.assign(static_cast<std::size_t>(world_.size), false);
  if (negotiator_ != nullptr) {
    negotiator_->on_ready = [this](const ReadyTrace& ready) { write_trace(traces_, ready); };
    tell_tracing();
    world_.link->wake_self();
  }
  return {};
}

// The other ranks hear with their next decisions whether to trace, or now.
void Engine::tell_tracing() {
  tell_last_batch();
  for (int peer = 1; peer < world_.size; ++peer) world_.link->wake(peer);
}

bool Engine::stop_timeline() {
  {
    const std::lock_guard lock(progress_);
    if (timeline_ == nullptr) return false;
    tracing_ = tracing_alone_ = false;
    flush_traces(false);
    if (negotiator_ != nullptr) {
      negotiator_->on_ready = nullptr;
      if (!broken_) tell_tracing();
    }
  }
  const Nanoseconds deadline = now_ns() + kLastTraces;
  for (bool waiting = world_.size > 1; waiting && now_ns() < deadline;) {
    {
      const std::lock_guard lock(progress_);
      step();
      waiting = false;
      for (int peer = 1; peer < world_.size; ++peer) {
        waiting |= !trace_ended_[static_cast<std::size_t>(peer)] && !world_.link->has_left(peer);
      }
      waiting &= !broken_;
    }
    notify_local_waiters();
    if (waiting) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::unique_ptr<Timeline> ended;
  {
    const std::lock_guard lock(progress_);
    ended = std::move(timeline_);
  }
  ended->close();
  return true;
}

}  // namespace khorovod
