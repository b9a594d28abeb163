#include "engine/negotiator.h"

#include <algorithm>
#include <bit>

#include "base/float_environment.h"
#include "collectives/adasum.h"
#include "engine/reduction.h"

namespace khorovod {

namespace {

std::vector<std::int64_t> sizes_of(const Request& request) {
  if (request.kind == OpKind::kAlltoall || request.kind == OpKind::kJoin) return request.numbers;
  std::vector<std::int64_t> rows;
  if (request.kind == OpKind::kAllgather) {
    for (const TensorSpec& tensor : request.tensors) rows.push_back(tensor.rows());
  }
  return rows;
}

// A rank's request for something that all asked for alike but for the sizes.
Request with_sizes(Request request, const std::vector<std::int64_t>& sizes) {
  if (request.kind == OpKind::kAlltoall) {
    std::int64_t rows = 0;
    for (const auto count : sizes) rows += count;
    request.numbers = sizes;
    request.tensors.front().shape.front() = rows;
  } else if (request.kind == OpKind::kAllgather) {
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      request.tensors[i].shape.front() = sizes[i];
    }
  }
  return request;
}

bool is_administrative(OpKind kind) {
  return kind == OpKind::kJoin || kind == OpKind::kAddProcessSets ||
         kind == OpKind::kRemoveProcessSet;
}

// Bytes of a tensor as it travels.
std::size_t wire_bytes(const Request& request, const TensorSpec& tensor) {
  return tensor.elements() * dtype_size(wire_type(tensor.dtype, request.compression));
}

std::size_t payload_bytes(const Request& request) {
  std::size_t total = 0;
  for (const TensorSpec& tensor : request.tensors) total += wire_bytes(request, tensor);
  return total;
}

std::string joined_text(const std::vector<bool>& joined) {
  std::string text;
  for (std::size_t rank = 0; rank < joined.size(); ++rank) {
    if (joined[rank]) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

}  // namespace

Negotiator::Negotiator(int size, NegotiatorOptions options)
    : size_(size),
      options_(options),
      acknowledged_(static_cast<std::size_t>(size), 0),
      joined_(static_cast<std::size_t>(size), false) {
  sets_[0] = all_ranks(size);
}

// ---------------------------------------------------------------------------------------------------
// Booking announcements

Negotiator::Entry& Negotiator::entry_for(const Request& request, const MembersRef& members,
                                         int rank) {
  const auto found = by_name_.find({request.set, request.name});
  if (found == by_name_.end()) {
    auto fresh = std::make_unique<Entry>(Entry{.name = request.name,
                                               .request = request,
                                               .members = members,
                                               .announced = {},
                                               .arrived = {},
                                               .sizes = {},
                                               .payloads = {},
                                               .error = {},
                                               .recent = {}});
    const auto n = members->ranks.size();
    fresh->announced.resize(n);
    fresh->arrived.resize(n);
    fresh->sizes.resize(n);
    fresh->payloads.resize(n);
    Entry& entry = *fresh;
    by_name_.emplace(OpKey{request.set, entry.name}, std::move(fresh));
    return entry;
  }
  Entry& entry = *found->second;
  const auto member = static_cast<std::size_t>(members->index_of(rank));
  if (entry.count == 0 && (entry.request.cacheable != request.cacheable ||
                           !mismatch(entry.request, 0, request, 0).empty())) {
    // The name comes back with other parameters: what was cached for it no longer holds.
    retire(entry);
    entry.request = request;
  } else if (entry.sizes[member] != sizes_of(request)) {
    retire(entry);
  }
  return entry;
}

// The entry that an announcement is for; null if it is for a set that is gone. `request` becomes
// what the rank asks for, or null if that is exactly what is cached.
Negotiator::Entry* Negotiator::find(const Announcement& announcement, int rank, Request& remembered,
                                    const Request*& request, bool& sane) {
  request = &announcement.request;
  if (announcement.id != 0) {
    if (const auto known = by_id_.find(announcement.id); known != by_id_.end()) {
      request = nullptr;
      ++cache_hits_;
      sane = known->second->members->contains(rank);
      return known->second;
    }
    // Sent before the rank had heard that the id is retired.
    const auto old = remembered_.find(announcement.id);
    sane = old != remembered_.end() && old->second.members->contains(rank);
    if (!sane) return nullptr;
    const auto member = static_cast<std::size_t>(old->second.members->index_of(rank));
    remembered = with_sizes(old->second.request, old->second.sizes[member]);
    request = &remembered;
  }
  const auto set = sets_.find(request->set);
  if (set == sets_.end()) return nullptr;  // removed meanwhile: the rank will hear of it
  const MembersRef& members = set->second;
  sane = members->contains(rank) &&
         (request->kind != OpKind::kBroadcast || members->contains(request->root)) &&
         (request->kind != OpKind::kAlltoall || request->numbers.size() == members->ranks.size()) &&
         (request->kind != OpKind::kAllreduce || request->reduce != ReduceOp::kAdasum ||
          std::has_single_bit(members->ranks.size()));
  return sane ? &entry_for(*request, members, rank) : nullptr;
}

bool Negotiator::announce(int rank, const Announcement& announcement, Nanoseconds now) {
  bool sane = true;
  Request remembered;
  const Request* request = nullptr;
  Entry* entry = find(announcement, rank, remembered, request, sane);
  if (entry == nullptr) return sane;
  if (!book(*entry, request, rank, announcement, now)) return false;
  if (entry->request.kind == OpKind::kJoin) join(rank);
  queue_if_ready(*entry);
  return true;
}

bool Negotiator::book(Entry& entry, const Request* request, int rank,
                      const Announcement& announcement, Nanoseconds now) {
  const auto member = static_cast<std::size_t>(entry.members->index_of(rank));
  if (entry.announced[member]) return false;  // a rank refuses a second submission of a name itself
  if (entry.count == 0) {
    entry.first_rank = rank;
  } else if (request != nullptr && entry.error.empty()) {
    entry.error = mismatch(entry.request, entry.first_rank, *request, rank);
  }
  if (request != nullptr) entry.sizes[member] = sizes_of(*request);
  const Request& asked = request != nullptr ? *request : entry.request;
  if (announcement.has_payload) {
    if (asked.kind == OpKind::kBroadcast && asked.root != rank) return false;
    if (asked.kind == OpKind::kAlltoall || asked.is_handed()) return false;
    const std::size_t expected = request == nullptr && entry.request.sizes_vary()
                                     ? payload_bytes(with_sizes(entry.request, entry.sizes[member]))
                                     : payload_bytes(asked);
    if (announcement.payload.size() != expected) return false;
    entry.payloads[member].assign(announcement.payload.begin(), announcement.payload.end());
    ++entry.payload_count;
  }
  entry.announced[member] = true;
  entry.arrived[member] = now;
  ++entry.count;
  return true;
}

void Negotiator::join(int rank) {
  joined_[static_cast<std::size_t>(rank)] = true;
  ++joined_count_;
  last_joined_ = rank;
  // What the others have waited for this rank with can run.
  for (const auto& [key, entry] : by_name_) {
    if (entry->count > 0 && entry->members->contains(rank)) queue_if_ready(*entry);
  }
}

bool Negotiator::everybody_is_here(const Entry& entry) const {
  const auto& ranks = entry.members->ranks;
  if (entry.count == entry.members->size()) return true;
  if (joined_count_ == 0 || entry.request.kind == OpKind::kJoin) return false;
  for (std::size_t m = 0; m < ranks.size(); ++m) {
    if (!entry.announced[m] && !joined_[static_cast<std::size_t>(ranks[m])]) return false;
  }
  return true;
}

void Negotiator::queue_if_ready(Entry& entry) {
  if (entry.queued || !everybody_is_here(entry)) return;
  const OpKind kind = entry.request.kind;
  const bool somebody_joined = entry.count < entry.members->size();
  const bool works_without =
      entry.members->set == 0 && (kind == OpKind::kAllreduce || kind == OpKind::kBarrier);
  if (somebody_joined && !works_without && entry.error.empty()) {
    entry.error = std::string("Mismatched operations for tensor '") + entry.request.label() +
                  "': rank " + std::to_string(entry.first_rank) + " has " + op_name(kind) +
                  ", but rank(s) " + joined_text(joined_) +
                  " called join(). While a rank has joined, the others can only allreduce, all of "
                  "them together.";
  }
  entry.queued = true;
  (entry.error.empty() ? ready_ : failed_).push_back(&entry);
}

void Negotiator::acknowledge(int rank, std::uint64_t batch) {
  acknowledged_[static_cast<std::size_t>(rank)] = batch;
  if (remembered_.empty()) return;
  std::erase_if(remembered_, [&](const auto& item) {
    const Remembered& old = item.second;
    return std::all_of(old.members->ranks.begin(), old.members->ranks.end(), [&](int member) {
      return acknowledged_[static_cast<std::size_t>(member)] >= old.batch;
    });
  });
}

// ---------------------------------------------------------------------------------------------------
// The cache of ids

void Negotiator::retire(Entry& entry) {
  if (entry.id == 0) return;
  remembered_[entry.id] = {entry.request, entry.members, entry.sizes, next_batch_};
  newly_retired_.push_back({entry.id, entry.members});
  by_id_.erase(entry.id);
  recent_.erase(entry.recent);
  entry.id = 0;
}

void Negotiator::forget(Entry& entry) {
  retire(entry);
  by_name_.erase(by_name_.find(OpKey{entry.request.set, entry.name}));
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

void Negotiator::close_round(Entry& entry) {
  entry.count = 0;
  entry.payload_count = 0;
  entry.first_rank = -1;
  entry.queued = false;
  entry.announced.assign(entry.announced.size(), false);
}

// ---------------------------------------------------------------------------------------------------
// Results that travel with the decision

bool Negotiator::can_answer_inline(const Entry& entry) const {
  if (entry.request.kind == OpKind::kBarrier) return true;
  if (entry.request.kind == OpKind::kBroadcast) return entry.payload_count == 1;
  return entry.payload_count == entry.count;
}

// Reduces each tensor over the members' payloads. Who has joined contributes nothing.
void Negotiator::reduce_payloads(Entry& entry, std::vector<std::byte>& result) {
  const FloatEnvironment ieee;
  const Request& request = entry.request;
  const int n = entry.members->size();
  const Reduction reduction = reduction_of(request.reduce);
  const Scale postscale = postscale_of(request, n);
  result.resize(payload_bytes(request));
  for (std::size_t m = 0; m < entry.payloads.size(); ++m) {
    if (!entry.announced[m]) entry.payloads[m].clear();
  }
  std::vector<const std::byte*> sources(entry.payloads.size());
  std::size_t at = 0;
  for (const TensorSpec& tensor : request.tensors) {
    const DType wire = wire_type(tensor.dtype, request.compression);
    const std::size_t bytes = wire_bytes(request, tensor);
    for (std::size_t m = 0; m < sources.size(); ++m) {
      auto& payload = entry.payloads[m];
      if (payload.size() < at + bytes) {  // joined
        payload.resize(at + bytes);
        kernels().fill_identity(reduction, wire, payload.data() + at, tensor.elements());
      }
      sources[m] = payload.data() + at;
    }
    if (request.reduce == ReduceOp::kAdasum) {
      adasum(wire, result.data() + at, sources.data(), n, tensor.elements(), postscale);
    } else {
      kernels().reduce(reduction, wire, result.data() + at, sources.data(), n, tensor.elements(),
                       postscale);
    }
    at += bytes;
  }
}

// Tensor by tensor, the members' blocks one after the other.
void Negotiator::gather_payloads(const Entry& entry, std::vector<std::byte>& result) const {
  std::vector<std::size_t> read(entry.payloads.size(), 0);
  for (std::size_t i = 0; i < entry.request.tensors.size(); ++i) {
    const TensorSpec& tensor = entry.request.tensors[i];
    const std::size_t row = tensor.row_elements() * dtype_size(tensor.dtype);
    for (std::size_t m = 0; m < entry.payloads.size(); ++m) {
      const std::size_t bytes = static_cast<std::size_t>(entry.sizes[m][i]) * row;
      const std::byte* block = entry.payloads[m].data() + read[m];
      result.insert(result.end(), block, block + bytes);
      read[m] += bytes;
    }
  }
}

void Negotiator::answer_inline(Entry& entry, PlanEntry& item) {
  const Request& request = entry.request;
  switch (request.kind) {
    case OpKind::kBroadcast:
      item.result = entry.payloads[static_cast<std::size_t>(entry.members->index_of(request.root))];
      return;
    case OpKind::kAllreduce:
    case OpKind::kReducescatter:
      return reduce_payloads(entry, item.result);
    case OpKind::kAllgather:
      return gather_payloads(entry, item.result);
    default:
      return;
  }
}

// ---------------------------------------------------------------------------------------------------
// Process sets and joins

std::uint32_t Negotiator::free_set_id() const {
  std::uint32_t id = 1;
  while (sets_.contains(id)) ++id;
  return id;
}

void Negotiator::drop_set(std::uint32_t id) {
  sets_.erase(id);
  std::vector<Entry*> gone;
  for (const auto& [key, entry] : by_name_) {
    if (key.set == id) gone.push_back(entry.get());
  }
  for (Entry* entry : gone) forget(*entry);
}

// Carries out what concerns the coordinator itself; "" or why it cannot be done.
std::string Negotiator::administrate(Entry& entry, PlanEntry& item) {
  const auto& numbers = entry.request.numbers;
  if (entry.request.kind == OpKind::kJoin) {
    // Ranks that joined early have counted fewer operations without a name: all go on from the
    // highest number.
    std::int64_t next = 0;
    for (const Sizes& counted : entry.sizes) {
      if (!counted.empty()) next = std::max(next, counted.front());
    }
    item.numbers = {last_joined_, next};
    joined_.assign(joined_.size(), false);
    joined_count_ = 0;
    return "";
  }
  if (entry.request.kind == OpKind::kRemoveProcessSet) {
    const auto id = static_cast<std::uint32_t>(numbers.empty() ? 0 : numbers.front());
    if (id == 0 || !sets_.contains(id)) return "There is no such process set";
    drop_set(id);
    return "";
  }
  std::vector<std::vector<int>> added = new_sets(entry.request, size_);
  if (added.empty()) return "The process sets make no sense";
  for (auto& ranks : added) {
    const std::uint32_t id = free_set_id();
    sets_[id] = std::make_shared<Members>(Members{id, std::move(ranks)});
    item.numbers.push_back(id);
  }
  return "";
}

// ---------------------------------------------------------------------------------------------------
// Deciding

// What members must know of each other's sizes.
Negotiator::Sizes Negotiator::numbers_of(const Entry& entry) const {
  Sizes numbers;
  if (entry.request.kind == OpKind::kAlltoall) {
    for (const Sizes& row : entry.sizes) numbers.insert(numbers.end(), row.begin(), row.end());
  } else if (entry.request.kind == OpKind::kAllgather) {
    for (std::size_t i = 0; i < entry.request.tensors.size(); ++i) {
      for (const Sizes& rows : entry.sizes) numbers.push_back(rows[i]);
    }
  }
  return numbers;
}

PlanEntry Negotiator::plan_entry(Entry& entry, Plan::Kind kind) {
  PlanEntry item;
  item.id = entry.id;
  if (entry.id != 0) {
    touch(entry);
  } else {
    item.name = entry.name;
    if (kind != Plan::Kind::kFail && entry.request.cacheable && options_.cache_capacity > 0) {
      entry.id = item.assign_id = next_id_++;
      by_id_[entry.id] = &entry;
      entry.recent = recent_.insert(recent_.begin(), &entry);
    }
  }
  if (entry.count < entry.members->size()) item.request = entry.request;  // somebody has joined
  if (kind != Plan::Kind::kFail) item.numbers = numbers_of(entry);
  return item;
}

Plan Negotiator::plan_for(const std::vector<Entry*>& entries, Plan::Kind kind) {
  Plan plan;
  plan.number = next_plan_++;
  plan.kind = kind;
  plan.members = entries.front()->members;
  plan.set = plan.members->set;
  for (Entry* entry : entries) {
    if (on_ready) {
      ReadyTrace trace{entry->request.label(), op_name(entry->request.kind), {}};
      for (std::size_t m = 0; m < entry->announced.size(); ++m) {
        if (entry->announced[m])
          trace.ranks.emplace_back(plan.members->ranks[m], entry->arrived[m]);
      }
      on_ready(std::move(trace));
    }
    PlanEntry item = plan_entry(*entry, kind);
    if (kind == Plan::Kind::kInline) answer_inline(*entry, item);
    if (kind == Plan::Kind::kFail) plan.error = entry->error;
    plan.entries.push_back(std::move(item));
    close_round(*entry);
  }
  return plan;
}

std::size_t Negotiator::bytes_to_move(const Entry& entry) const {
  if (entry.request.kind != OpKind::kAllgather) return entry.request.bytes();
  std::size_t total = 0;
  for (std::size_t i = 0; i < entry.request.tensors.size(); ++i) {
    const TensorSpec& tensor = entry.request.tensors[i];
    for (const Sizes& rows : entry.sizes) {
      total += static_cast<std::size_t>(rows[i]) * tensor.row_elements() * dtype_size(tensor.dtype);
    }
  }
  return total;
}

Decisions Negotiator::decide() {
  Decisions decisions;
  // Tensors whose data came along are answered at once, per process set; the rest is fused for the
  // data plane. What changes the sets or ends a join comes last: it is not to disturb the others.
  std::map<std::uint32_t, std::vector<Entry*>> small;
  std::vector<Entry*> large;
  std::vector<Entry*> administrative;
  for (Entry* entry : ready_) {
    if (is_administrative(entry->request.kind)) {
      administrative.push_back(entry);
    } else if (can_answer_inline(*entry)) {
      small[entry->members->set].push_back(entry);
    } else {
      large.push_back(entry);
    }
  }
  for (const auto& [set, entries] : small) {
    decisions.plans.push_back(plan_for(entries, Plan::Kind::kInline));
  }
  std::vector<Fusable> fusable;
  for (const Entry* entry : large) fusable.push_back({&entry->request, bytes_to_move(*entry)});
  for (const auto& bucket : fuse(fusable, options_.fusion)) {
    std::vector<Entry*> members;
    for (const std::size_t i : bucket) members.push_back(large[i]);
    decisions.plans.push_back(plan_for(members, Plan::Kind::kRun));
  }
  for (Entry* entry : failed_) decisions.plans.push_back(plan_for({entry}, Plan::Kind::kFail));

  for (Entry* entry : failed_) forget(*entry);
  for (Entry* entry : ready_) {
    if (entry->id == 0 && !is_administrative(entry->request.kind)) forget(*entry);
  }
  ready_.clear();
  failed_.clear();
  for (Entry* entry : administrative) {
    Plan plan = plan_for({entry}, Plan::Kind::kInline);
    plan.error = administrate(*entry, plan.entries.front());
    if (!plan.error.empty()) plan.kind = Plan::Kind::kFail;
    decisions.plans.push_back(std::move(plan));
    forget(*entry);
  }
  evict();
  decisions.batch = next_batch_++;
  decisions.retired = std::move(newly_retired_);
  newly_retired_.clear();
  return decisions;
}

StalledTensor Negotiator::waits_for(OpKey key) const {
  const auto found = by_name_.find(key);
  return found == by_name_.end() ? StalledTensor{} : waits_for(*found->second);
}

std::vector<StalledTensor> Negotiator::waiting_since(Nanoseconds then, Nanoseconds now) const {
  std::vector<StalledTensor> result;
  for (const auto& [key, entry] : by_name_) {
    Nanoseconds since = now;
    for (std::size_t m = 0; m < entry->announced.size(); ++m) {
      if (entry->announced[m]) since = std::min(since, entry->arrived[m]);
    }
    if (since > then) continue;
    StalledTensor tensor = waits_for(*entry);
    tensor.waited = now - since;
    if (!tensor.missing.empty()) result.push_back(std::move(tensor));
  }
  return result;
}

StalledTensor Negotiator::waits_for(const Entry& entry) const {
  StalledTensor tensor;
  if (entry.count == 0 || entry.queued) return tensor;
  tensor.label = entry.request.label();
  for (std::size_t m = 0; m < entry.announced.size(); ++m) {
    const int rank = entry.members->ranks[m];
    if (entry.announced[m]) {
      tensor.waiting.push_back(rank);
    } else if (entry.request.kind == OpKind::kJoin || !joined_[static_cast<std::size_t>(rank)]) {
      tensor.missing.push_back(rank);
    }
  }
  return tensor;
}

}  // namespace khorovod
