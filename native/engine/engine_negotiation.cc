// The engine's part in negotiation: announcing what was submitted, taking decisions, carrying them
// out.
#include <algorithm>
#include <cstring>

#include "collectives/scaling.h"
#include "engine/engine.h"

namespace khorovod {

namespace {

// Tensors this small travel with their announcement, as long as the message stays small.
constexpr std::size_t kInlineBytes = 2048;
constexpr std::size_t kInlineBudget = 8192;

// Operations complete in groups of about this size.
constexpr std::size_t kFinishBytes = std::size_t{64} << 10;

}  // namespace

bool Engine::announce_submissions() {
  {
    const std::lock_guard lock(submit_mutex_);
    thread_called_ = false;
    if (queue_.empty()) return false;
    draining_.swap(queue_);
    queued_bytes_ = 0;
  }
  outgoing_.clear();
  write_announcement_header(outgoing_, carried_out_);
  std::size_t inline_budget = kInlineBudget;
  std::uint64_t bytes = 0;
  for (const OperationRef& operation : draining_) {
    bytes += operation->bytes;
    announce(operation, inline_budget);
  }
  if (world_.rank != 0) world_.link->send(0, outgoing_.view());
  events_.record(
      {now_ns(), 0, 0, bytes, static_cast<std::uint32_t>(draining_.size()), EventKind::kAnnounce});
  draining_.clear();
  return true;
}

void Engine::announce(const OperationRef& operation, std::size_t& inline_budget) {
  const Request& request = operation->request;
  ++waiting_;
  const bool has_data = request.kind == OpKind::kAllreduce ||
                        (request.kind == OpKind::kBroadcast && request.root == world_.rank);
  const bool with_payload = has_data && operation->bytes <= std::min(kInlineBytes, inline_budget);
  if (with_payload) inline_budget -= operation->bytes;
  const Bytes payload = with_payload ? Bytes(operation->in, operation->bytes) : Bytes();

  std::uint32_t id = 0;
  const auto cached = request.cacheable ? cache_.find(request.name) : cache_.end();
  if (cached != cache_.end() && cached->second->request == request) {
    id = cached->second->id;
    cached->second->announced = operation;
    add(counters_.cache_hits, 1);
  } else {
    announced_.emplace(request.name, operation);
  }

  if (world_.rank == 0) {
    Announcement own;
    own.id = id;
    if (id == 0) own.request = request;
    own.has_payload = with_payload;
    own.payload = payload;
    if (!negotiator_->announce(0, own, operation->submitted)) {
      world_.link->abort(Code::kInternal, "the coordinator refused an announcement of its own");
    }
  } else {
    if (id != 0) {
      write_announced_id(outgoing_, id, with_payload);
    } else {
      write_announced_request(outgoing_, request, with_payload);
    }
    if (with_payload) outgoing_.bytes(payload);
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
  const bool sane =
      read_announcements(message, acknowledged, [&](const Announcement& announcement) {
        return negotiator_->announce(peer, announcement, now);
      });
  if (sane) negotiator_->acknowledge(peer, acknowledged);
  return sane;
}

bool Engine::decide() {
  if (negotiator_ == nullptr || !negotiator_->anything_ready()) return false;
  const Nanoseconds now = now_ns();
  if (const Nanoseconds gap = now - last_decision_; gap < options_.cycle_time) {
    set_timer(options_.cycle_time - gap);
    return false;
  }
  last_decision_ = now;
  Decisions decisions = negotiator_->decide();
  outgoing_.clear();
  write_decisions(outgoing_, decisions);
  for (int peer = 1; peer < world_.size; ++peer) world_.link->send(peer, outgoing_.view());
  negotiator_->acknowledge(0, decisions.batch);
  return carry_out(decisions);
}

bool Engine::carry_out(Decisions& decisions) {
  for (Plan& plan : decisions.plans) {
    if (!carry_out(plan)) return false;
  }
  for (const std::uint32_t id : decisions.retired) {
    const auto known = cache_by_id_.find(id);
    if (known == cache_by_id_.end()) continue;
    CacheEntry* entry = known->second;
    cache_by_id_.erase(known);
    // An operation announced under the id is answered by name: the coordinator remembers the id.
    if (entry->announced != nullptr) {
      announced_.emplace(entry->announced->request.name, std::move(entry->announced));
    }
    const auto by_name = cache_.find(entry->request.name);
    if (by_name != cache_.end() && by_name->second.get() == entry) cache_.erase(by_name);
  }
  carried_out_ = decisions.batch;
  return true;
}

// The operation that a rank announced under a name, in full or by a cache id. The two sides may
// differ in which: while parameters change, or an id is being retired, some ranks send one and some
// the other.
OperationRef Engine::take_announced(const std::string& name) {
  if (const auto named = announced_.extract(name); !named.empty()) return std::move(named.mapped());
  const auto cached = cache_.find(name);
  return cached == cache_.end() ? nullptr : std::move(cached->second->announced);
}

OperationRef Engine::resolve(const PlanEntry& item) {
  if (item.id != 0) {
    const auto known = cache_by_id_.find(item.id);
    if (known == cache_by_id_.end()) return nullptr;
    if (known->second->announced != nullptr) return std::move(known->second->announced);
    return take_announced(known->second->request.name);
  }
  OperationRef operation = take_announced(item.name);
  if (operation != nullptr && item.assign_id != 0) {
    auto& slot = cache_[item.name];
    if (slot != nullptr) cache_by_id_.erase(slot->id);
    slot = std::make_unique<CacheEntry>(CacheEntry{operation->request, item.assign_id, nullptr});
    cache_by_id_[item.assign_id] = slot.get();
  }
  return operation;
}

bool Engine::carry_out(Plan& plan) {
  std::vector<OperationRef> operations;
  operations.reserve(plan.entries.size());
  for (const PlanEntry& item : plan.entries) {
    operations.push_back(resolve(item));
    if (operations.back() == nullptr) return false;
  }
  if (operations.empty()) return false;
  add(counters_.plans, 1);
  switch (plan.kind) {
    case Plan::Kind::kFail:
      for (const auto& operation : operations) {
        complete(operation, Status::error(Code::kMismatch, plan.error));
      }
      return true;
    case Plan::Kind::kInline:
      for (std::size_t i = 0; i < operations.size(); ++i) {
        const Operation& op = *operations[i];
        const std::size_t expected = op.request.kind == OpKind::kBarrier ? 0 : op.bytes;
        if (plan.entries[i].result.size() != expected) return false;
      }
      complete_inline(plan, operations);
      return true;
    case Plan::Kind::kRun:
      run_on_plane(plan, std::move(operations));
      return true;
  }
  return false;
}

void Engine::complete_inline(Plan& plan, std::vector<OperationRef>& operations) {
  add(counters_.inline_tensors, operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto& result = plan.entries[i].result;
    if (!result.empty()) std::memcpy(operations[i]->out, result.data(), result.size());
    complete(operations[i], {});
  }
}

void Engine::run_on_plane(const Plan& plan, std::vector<OperationRef> operations) {
  const Request& like = operations.front()->request;
  Work work;
  work.plan = plan.number;
  work.dtype = like.dtype;
  if (like.kind == OpKind::kBroadcast) {
    work.movement = Movement::kBroadcast;
    work.root = like.root;
  } else {
    work.prescale = prescale_of(like.prescale);
    work.postscale =
        postscale_of(like.postscale, like.reduce == ReduceOp::kAverage ? world_.size : 1);
  }
  Running running;
  for (auto& operation : operations) {
    if (operation->bytes == 0) {
      complete(operation, {});  // its peers had too many small tensors to send it along
      continue;
    }
    if (work.movement == Movement::kBroadcast && work.root == world_.rank &&
        operation->out != operation->in) {
      std::memcpy(operation->out, operation->in,
                  operation->bytes);  // planes write to the others only
    }
    work.segments.push_back({operation->in, operation->out, operation->bytes});
    work.bytes += operation->bytes;
    running.operations.push_back(std::move(operation));
  }
  if (work.segments.empty()) return;
  events_.record({now_ns(), 0, plan.number, work.bytes,
                  static_cast<std::uint32_t>(work.segments.size()), EventKind::kPlan});
  running.left = running.operations.size();
  running_.emplace(plan.number, std::move(running));
  world_.plane->submit(std::move(work));
}

void Engine::on_segment_done(std::uint64_t plan, std::size_t segment) {
  const auto found = running_.find(plan);
  Running& running = found->second;
  OperationRef operation = std::move(running.operations[segment]);
  add(counters_.bytes, operation->bytes);
  if (--running.left == 0) {
    running_.erase(found);
    events_.record({now_ns(), 0, plan, 0, 0, EventKind::kComplete});
  }
  complete(std::move(operation), {});
}

void Engine::complete(OperationRef operation, Status status) {
  --waiting_;
  add(status.ok() ? counters_.completed : counters_.failed, 1);
  operation->status = std::move(status);
  finished_bytes_ += operation->bytes;
  finished_.push_back(std::move(operation));
  // Many small ones take the lock once; a large one is not kept waiting.
  if (finished_bytes_ >= kFinishBytes) publish_finished();
}

void Engine::publish_finished() {
  if (finished_.empty()) return;
  {
    const std::lock_guard lock(submit_mutex_);
    for (const OperationRef& operation : finished_) in_flight_.erase(operation->request.name);
  }
  for (OperationRef& operation : finished_) {
    operation->done.store(true, std::memory_order_release);
    if (operation->on_done) {
      pool_.post([done = std::move(operation)] { done->on_done(done->status); });
    }
  }
  finished_.clear();
  finished_bytes_ = 0;
  notify_local_waiters();
}

}  // namespace khorovod
