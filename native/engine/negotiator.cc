#include "engine/negotiator.h"

#include <algorithm>

#include "base/float_environment.h"
#include "collectives/scaling.h"
#include "engine/fusion.h"

namespace khorovod {

Negotiator::Negotiator(int size, NegotiatorOptions options)
    : size_(size), options_(options), acknowledged_(static_cast<std::size_t>(size), 0) {}

Negotiator::Entry& Negotiator::entry_for(const Request& request) {
  auto& slot = by_name_[request.name];
  if (slot == nullptr) {
    slot = std::make_unique<Entry>();
    slot->request = request;
    slot->announced.resize(static_cast<std::size_t>(size_));
    slot->payloads.resize(static_cast<std::size_t>(size_));
  } else if (slot->count == 0 && slot->request != request) {
    // The name comes back with other parameters: what was cached for it no longer holds.
    retire(*slot);
    slot->request = request;
  }
  return *slot;
}

bool Negotiator::announce(int rank, const Announcement& announcement, Nanoseconds now) {
  Entry* entry = nullptr;
  const Request* request = &announcement.request;
  if (announcement.id != 0) {
    if (const auto known = by_id_.find(announcement.id); known != by_id_.end()) {
      entry = known->second;
      request = &entry->request;
      ++cache_hits_;
    } else if (const auto old = retired_.find(announcement.id); old != retired_.end()) {
      request = &old->second.request;  // sent before the rank had heard that the id is retired
    } else {
      return false;
    }
  }
  if (entry == nullptr) entry = &entry_for(*request);

  const auto index = static_cast<std::size_t>(rank);
  if (request->root < 0 || request->root >= size_) return false;
  if (announcement.has_payload && request->kind == OpKind::kBroadcast && request->root != rank) {
    return false;  // only the root's data counts
  }
  if (entry->announced[index]) return false;  // a rank refuses a second submission of a name itself
  if (entry->count == 0) {
    entry->first_rank = rank;
    entry->since = now;
  } else if (entry->error.empty() && request != &entry->request) {
    entry->error = mismatch(entry->request, entry->first_rank, *request, rank);
  }
  if (announcement.has_payload) {
    if (announcement.payload.size() != request->bytes()) return false;
    entry->payloads[index].assign(announcement.payload.begin(), announcement.payload.end());
    ++entry->payload_count;
  }
  entry->announced[index] = true;
  if (++entry->count == size_) (entry->error.empty() ? ready_ : failed_).push_back(entry);
  return true;
}

void Negotiator::acknowledge(int rank, std::uint64_t batch) {
  acknowledged_[static_cast<std::size_t>(rank)] = batch;
  if (retired_.empty()) return;
  const std::uint64_t all = *std::min_element(acknowledged_.begin(), acknowledged_.end());
  std::erase_if(retired_, [&](const auto& item) { return item.second.batch <= all; });
}

void Negotiator::retire(Entry& entry) {
  if (entry.id == 0) return;
  retired_[entry.id] = {entry.request, next_batch_};
  newly_retired_.push_back(entry.id);
  by_id_.erase(entry.id);
  recent_.erase(entry.recent);
  entry.id = 0;
}

void Negotiator::forget(Entry& entry) {
  retire(entry);
  by_name_.erase(by_name_.find(entry.request.name));
}

void Negotiator::touch(Entry& entry) { recent_.splice(recent_.begin(), recent_, entry.recent); }

void Negotiator::evict() {
  auto candidate = recent_.end();
  while (recent_.size() > options_.cache_capacity && candidate != recent_.begin()) {
    --candidate;
    Entry& entry = **candidate;
    if (entry.count != 0) continue;  // somebody waits for it right now
    ++candidate;                     // forget() erases what is behind it
    forget(entry);
  }
}

void Negotiator::reduce_inline(Entry& entry, std::vector<std::byte>& result) {
  const Request& request = entry.request;
  if (request.kind == OpKind::kBroadcast) {
    result = entry.payloads[static_cast<std::size_t>(request.root)];
    return;
  }
  if (request.kind == OpKind::kBarrier) return;
  const FloatEnvironment ieee;
  const std::size_t count = request.bytes() / dtype_size(request.dtype);
  const Scale pre = prescale_of(request.prescale);
  std::vector<const std::byte*> sources;
  for (auto& payload : entry.payloads) {
    if (!pre.identity()) kernels().scale(request.dtype, payload.data(), payload.data(), count, pre);
    sources.push_back(payload.data());
  }
  result.resize(request.bytes());
  kernels().sum(request.dtype, result.data(), sources.data(), size_, count,
                postscale_of(request.postscale, request.reduce == ReduceOp::kAverage ? size_ : 1));
}

void Negotiator::close_round(Entry& entry) {
  entry.count = 0;
  entry.payload_count = 0;
  entry.first_rank = -1;
  entry.announced.assign(static_cast<std::size_t>(size_), false);
}

Plan Negotiator::plan_for(const std::vector<Entry*>& entries, Plan::Kind kind) {
  Plan plan;
  plan.number = next_plan_++;
  plan.kind = kind;
  for (Entry* entry : entries) {
    PlanEntry item;
    item.id = entry->id;
    if (entry->id != 0) {
      touch(*entry);
    } else {
      item.name = entry->request.name;
      if (kind != Plan::Kind::kFail && entry->request.cacheable && options_.cache_capacity > 0) {
        entry->id = item.assign_id = next_id_++;
        by_id_[entry->id] = entry;
        entry->recent = recent_.insert(recent_.begin(), entry);
      }
    }
    if (kind == Plan::Kind::kInline) reduce_inline(*entry, item.result);
    if (kind == Plan::Kind::kFail) plan.error = entry->error;
    plan.entries.push_back(std::move(item));
    close_round(*entry);
  }
  return plan;
}

Decisions Negotiator::decide() {
  Decisions decisions;
  // Tensors whose data came along are answered at once; the rest is fused for the data plane.
  std::vector<Entry*> small;
  std::vector<Entry*> large;
  for (Entry* entry : ready_) {
    const bool from_root = entry->request.kind == OpKind::kBroadcast && entry->payload_count == 1;
    const bool all_here =
        entry->request.kind == OpKind::kBarrier || from_root || entry->payload_count == size_;
    (all_here ? small : large).push_back(entry);
  }
  if (!small.empty()) decisions.plans.push_back(plan_for(small, Plan::Kind::kInline));

  std::vector<Fusable> fusable;
  for (const Entry* entry : large) fusable.push_back({&entry->request, entry->request.bytes()});
  for (const auto& bucket : fuse(fusable, options_.fusion_threshold)) {
    std::vector<Entry*> members;
    for (const std::size_t i : bucket) members.push_back(large[i]);
    decisions.plans.push_back(plan_for(members, Plan::Kind::kRun));
  }
  for (Entry* entry : failed_) decisions.plans.push_back(plan_for({entry}, Plan::Kind::kFail));

  for (Entry* entry : failed_) forget(*entry);
  for (Entry* entry : ready_) {
    if (entry->id == 0) forget(*entry);
  }
  ready_.clear();
  failed_.clear();
  evict();
  decisions.batch = next_batch_++;
  decisions.retired = std::move(newly_retired_);
  newly_retired_.clear();
  return decisions;
}

std::vector<PendingTensor> Negotiator::pending() const {
  std::vector<PendingTensor> result;
  for (const auto& [name, entry] : by_name_) {
    if (entry->count == 0) continue;
    PendingTensor tensor{name, entry->request.kind, entry->since, {}};
    for (int rank = 0; rank < size_; ++rank) {
      if (!entry->announced[static_cast<std::size_t>(rank)]) tensor.missing.push_back(rank);
    }
    result.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace khorovod
