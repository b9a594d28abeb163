// The engine's part in negotiation: announcing what was submitted, taking decisions, carrying them
// out.
#include <algorithm>
#include <cstring>

#include "base/float_environment.h"
#include "engine/engine.h"
#include "engine/reduction.h"

namespace khorovod {

namespace {

// Tensors this small travel with their announcement, as long as the message stays small.
constexpr std::size_t kInlineBytes = 2048;
constexpr std::size_t kInlineBudget = 8192;

// Operations complete in groups of about this size.
constexpr std::size_t kFinishBytes = std::size_t{64} << 10;

OpKey key_of(const Request& request) { return {request.set, request.name}; }

// Whether what this rank contributes may travel with its announcement.
bool may_travel_inline(const Request& request, int rank) {
  switch (request.kind) {
    case OpKind::kAllreduce:
    case OpKind::kAllgather:
    case OpKind::kReducescatter:
      return true;
    case OpKind::kBroadcast:
      return request.root == rank;
    default:
      return false;
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------
// Announcing

bool Engine::announce_submissions() {
  {
    const std::lock_guard lock(submit_mutex_);
    thread_called_ = false;
    if (queue_.empty()) return false;
    draining_.swap(queue_);
    queued_bytes_ = 0;
  }
  outgoing_.clear();
  write_message_header(outgoing_, carried_out_);
  std::size_t inline_budget = kInlineBudget;
  std::uint64_t bytes = 0;
  bool without_coordinator = false;
  for (const OperationRef& operation : draining_) {
    bytes += operation->bytes;
    without_coordinator |= operation->request.set != 0 && !operation->members->contains(0);
    announce(operation, inline_budget);
  }
  if (world_.rank != 0) {
    if (traces_.size() > 0) {
      write_traces(outgoing_, traces_.view());
      traces_.clear();
    }
    world_.link->send(0, outgoing_.view());
    // What it takes part in waits for it anyway; what it does not must not.
    if (without_coordinator) world_.link->wake(0);
  }
  events_.record(
      {now_ns(), 0, bytes, static_cast<std::uint32_t>(draining_.size()), EventKind::kAnnounce});
  draining_.clear();
  return true;
}

// What travels with an announcement: all tensors, scaled and in the type they travel in.
std::size_t Engine::write_payload(const Operation& operation, std::byte* to) const {
  const Request& request = operation.request;
  const FloatEnvironment ieee;
  const Scale prescale = prescale_of(request);
  std::size_t at = 0;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorSpec& tensor = request.tensors[i];
    const DType wire = wire_type(tensor.dtype, request.compression);
    const std::size_t elements = tensor.elements();
    const std::size_t bytes = elements * dtype_size(wire);
    if (to != nullptr && bytes > 0) {
      if (wire == tensor.dtype && prescale.identity()) {
        std::memcpy(to + at, operation.parts[i].in, bytes);
      } else {
        kernels().convert(wire, to + at, tensor.dtype, operation.parts[i].in, elements, prescale);
      }
    }
    at += bytes;
  }
  return at;
}

void Engine::announce(const OperationRef& operation, std::size_t& inline_budget) {
  const Request& request = operation->request;
  ++waiting_;
  if (request.set != 0 && members(request.set) != operation->members) {
    return complete(operation,
                    Status::error(Code::kAborted,
                                  "Process set " + std::to_string(request.set) + " was removed"));
  }
  if (request.kind == OpKind::kJoin) joined_ = operation;
  const bool with_payload = !request.is_handed() && may_travel_inline(request, world_.rank) &&
                            operation->bytes <= std::min(kInlineBytes, inline_budget);
  if (with_payload) inline_budget -= operation->bytes;

  std::uint32_t id = 0;
  const auto cached = request.cacheable ? cache_.find(key_of(request)) : cache_.end();
  if (cached != cache_.end() && cached->second->request == request) {
    id = cached->second->id;
    cached->second->announced = operation;
    add(counters_.cache_hits, 1);
  } else {
    announced_.emplace(key_of(request), operation);
  }

  const std::size_t payload_bytes = with_payload ? write_payload(*operation, nullptr) : 0;
  if (world_.rank == 0) {
    Announcement own;
    own.id = id;
    if (id == 0) own.request = request;
    own.has_payload = with_payload;
    if (with_payload) {
      payload_.resize(payload_bytes);
      write_payload(*operation, payload_.data());
      own.payload = payload_;
    }
    if (!negotiator_->announce(0, own, operation->submitted)) {
      world_.link->abort(
          Status::error(Code::kInternal, "the coordinator refused an announcement of its own"));
    }
  } else {
    if (id != 0) {
      write_announced_id(outgoing_, id, with_payload);
    } else {
      write_announced_request(outgoing_, request, with_payload);
    }
    if (with_payload) write_payload(*operation, outgoing_.reserve(payload_bytes));
  }
}

bool Engine::on_message(int peer, Bytes message) {
  if (world_.rank != 0) {
    Reader in(message);
    Decisions decisions;
    return read_decisions(in, decisions) && carry_out(decisions);
  }
  std::uint64_t acknowledged = 0;
  const Nanoseconds now = now_ns();
  const bool sane = read_message(
      message, acknowledged,
      [&](const Announcement& announcement) {
        return negotiator_->announce(peer, announcement, now);
      },
      [&](Bytes traces) { take_traces(peer, traces); },
      [&](const Complaints& complaints) { take_complaints(peer, complaints, now); },
      [&](Account account) { take_account(peer, std::move(account)); });
  if (sane) negotiator_->acknowledge(peer, acknowledged);
  return sane;
}

// ---------------------------------------------------------------------------------------------------
// Deciding

bool Engine::decide() {
  if (negotiator_ == nullptr || !negotiator_->anything_ready()) return false;
  const Nanoseconds now = now_ns();
  if (const Nanoseconds gap = now - last_decision_; gap < options_.cycle_time) {
    set_timer(options_.cycle_time - gap);
    return false;
  }
  last_decision_ = now;
  if (tracing_) write_trace(traces_, CycleTrace{now});
  Decisions decisions = negotiator_->decide();
  decisions.tracing = tracing_;
  events_.record(
      {now, 0, 0, static_cast<std::uint32_t>(decisions.plans.size()), EventKind::kDecide});
  tell_everybody(decisions, false);
  negotiator_->acknowledge(0, decisions.batch);
  std::erase_if(decisions.plans,
                [&](const Plan& plan) { return !plan.members->contains(world_.rank); });
  if (!carry_out(decisions)) {
    world_.link->abort(
        Status::error(Code::kInternal, "the coordinator cannot carry out its own decisions"));
  }
  return true;
}

// Sends every rank what concerns it; with `even_if_idle` also those that it says nothing to but
// that all earlier decisions have been sent.
void Engine::tell_everybody(const Decisions& decisions, bool even_if_idle) {
  const bool alike = decisions.concern_all(world_.size);
  for (int peer = 1; peer < world_.size; ++peer) {
    if (!even_if_idle && !decisions.concern(peer)) continue;
    if (peer == 1 || !alike) {
      outgoing_.clear();
      write_decisions(outgoing_, decisions, peer);
    }
    world_.link->send(peer, outgoing_.view());
  }
}

// The other ranks are to know that nothing more comes from before a departure.
void Engine::tell_last_batch() {
  if (negotiator_ == nullptr) return;
  Decisions nothing_new;
  nothing_new.batch = negotiator_->last_batch();
  nothing_new.tracing = tracing_;
  tell_everybody(nothing_new, true);
}

void Engine::tell_of_departures() {
  if (negotiator_ == nullptr) return;
  int left = 0;
  for (const Peer& peer : world_.peers) left += world_.link->has_left(peer.rank) ? 1 : 0;
  if (left > std::exchange(departures_told_, left)) tell_last_batch();
}

// ---------------------------------------------------------------------------------------------------
// Carrying out

bool Engine::carry_out(Decisions& decisions) {
  if (world_.rank != 0) {
    set_tracing(decisions.tracing);
    heed(decisions.stall);
  }
  for (Plan& plan : decisions.plans) {
    if (!carry_out(plan)) return false;
  }
  for (const Retired& retired : decisions.retired) retire(retired.id);
  carried_out_ = decisions.batch;
  return true;
}

void Engine::retire(std::uint32_t id) {
  const auto known = cache_by_id_.find(id);
  if (known == cache_by_id_.end()) return;
  CacheEntry* entry = known->second;
  cache_by_id_.erase(known);
  // An operation announced under the id is answered by name: the coordinator remembers the id.
  if (entry->announced != nullptr) {
    const OpKey key = key_of(entry->announced->request);
    announced_.emplace(key, std::move(entry->announced));
  }
  const auto by_name = cache_.find(key_of(entry->request));
  if (by_name != cache_.end() && by_name->second.get() == entry) cache_.erase(by_name);
}

// The operation that a rank announced under a name, in full or by a cache id. The two sides may
// differ in which: while parameters change, or an id is being retired, some ranks send one and some
// the other.
OperationRef Engine::take_announced(OpKey key) {
  if (const auto named = announced_.extract(key); !named.empty()) return std::move(named.mapped());
  const auto cached = cache_.find(key);
  return cached == cache_.end() ? nullptr : std::move(cached->second->announced);
}

OperationRef Engine::resolve(const Plan& plan, const PlanEntry& item) {
  if (item.id != 0) {
    const auto known = cache_by_id_.find(item.id);
    if (known == cache_by_id_.end()) return nullptr;
    if (known->second->announced != nullptr) return std::move(known->second->announced);
    OperationRef operation = take_announced(key_of(known->second->request));
    return operation != nullptr ? operation : stand_in(item);
  }
  OperationRef operation = take_announced({plan.set, item.name});
  if (operation == nullptr) operation = stand_in(item);
  if (operation != nullptr && key_of(operation->request) != OpKey{plan.set, item.name}) {
    return nullptr;
  }
  if (operation != nullptr && item.assign_id != 0) {
    if (const auto old = cache_.find({plan.set, item.name}); old != cache_.end()) {
      cache_by_id_.erase(old->second->id);
      cache_.erase(old);
    }
    auto fresh = std::make_unique<CacheEntry>(CacheEntry{operation->request, item.assign_id, {}});
    cache_by_id_[item.assign_id] = fresh.get();
    const OpKey key = key_of(fresh->request);
    cache_.emplace(key, std::move(fresh));
  }
  return operation;
}

// What a rank that has joined does in place of an operation that it never asked for: it contributes
// nothing, and throws the result away. Null if it has not joined.
OperationRef Engine::stand_in(const PlanEntry& item) const {
  if (joined_ == nullptr || !item.request.has_value()) return nullptr;
  const OpKind kind = item.request->kind;
  if (item.request->set != 0 || (kind != OpKind::kAllreduce && kind != OpKind::kBarrier)) {
    return nullptr;
  }
  auto operation = std::make_shared<Operation>();
  operation->request = *item.request;
  operation->members = joined_->members;
  operation->bytes = operation->request.bytes();
  // Its own factor must not turn the neutral element into another value.
  operation->stands_in = true;
  if (operation->request.is_handed()) return operation;
  operation->scratch.resize(operation->bytes);
  std::byte* at = operation->scratch.data();
  const Reduction reduction = reduction_of(operation->request.reduce);
  for (const TensorSpec& tensor : operation->request.tensors) {
    kernels().fill_identity(reduction, tensor.dtype, at, tensor.elements());
    operation->parts.push_back({at, at});
    at += tensor.bytes();
  }
  return operation;
}

bool Engine::carry_out(Plan& plan) {
  std::vector<OperationRef> operations;
  operations.reserve(plan.entries.size());
  const Nanoseconds now = tracing_ ? now_ns() : 0;
  for (const PlanEntry& item : plan.entries) {
    OperationRef operation = resolve(plan, item);
    if (operation == nullptr) {
      if (plan.kind == Plan::Kind::kFail && joined_ != nullptr) continue;  // not this rank's
      return false;
    }
    if (operation->stands_in) ++waiting_;
    operation->planned = now;
    operations.push_back(std::move(operation));
  }
  add(counters_.plans, 1);
  switch (plan.kind) {
    case Plan::Kind::kFail:
      for (const auto& operation : operations) {
        complete(operation, Status::error(Code::kMismatch, plan.error));
      }
      return true;
    case Plan::Kind::kInline:
      return complete_inline(plan, operations);
    case Plan::Kind::kRun:
      return run_on_plane(plan, operations);
  }
  return false;
}

bool Engine::complete_inline(Plan& plan, std::vector<OperationRef>& operations) {
  add(counters_.inline_tensors, operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (!take_result(*operations[i], plan.entries[i])) return false;
    operations[i]->moved_by = "INLINE";
    complete(operations[i], {});
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------
// Completing

void Engine::complete(OperationRef operation, Status status) {
  --waiting_;
  add(status.ok() ? counters_.completed : counters_.failed, operation->stands_in ? 0 : 1);
  operation->status = std::move(status);
  if (operation == joined_) joined_.reset();
  remember(*operation);
  if (tracing_) trace(*operation);
  if (operation->stands_in) return;
  finished_bytes_ += operation->bytes;
  finished_.push_back(std::move(operation));
  // Many small ones take the lock once; a large one is not kept waiting.
  if (finished_bytes_ >= kFinishBytes) publish_finished();
}

void Engine::publish_finished() {
  if (finished_.empty()) return;
  // Where there was no memory to post a callback, this goes on when some has been given back.
  std::erase_if(finished_, [](const OperationRef& operation) { return operation == nullptr; });
  {
    const std::lock_guard lock(submit_mutex_);
    for (const OperationRef& operation : finished_) {
      if (!operation->is_done()) in_flight_.erase(key_of(operation->request));
    }
  }
  for (const OperationRef& operation : finished_) {
    operation->done.store(true, std::memory_order_release);
  }
  notify_local_waiters();
  for (OperationRef& operation : finished_) {
    if (!operation->on_done) continue;
    pool_.post([operation] { operation->on_done(operation->status); });
    operation.reset();
  }
  finished_.clear();
  finished_bytes_ = 0;
}

}  // namespace khorovod
