#include "engine/plan.h"

#include <algorithm>

namespace khorovod {

namespace {

// Flags of decisions.
constexpr std::uint8_t kTracing = 1;
constexpr std::uint8_t kStall = 2;

// What the shortest of them take: memory for more is not made.
constexpr std::size_t kLeastEntryBytes = 3;  // id, no request, no numbers
constexpr std::size_t kLeastPlanBytes = 4;   // number, kind, set, no entries

void write_entry(Writer& out, const PlanEntry& entry, Plan::Kind kind) {
  out.varint(entry.id);
  if (entry.id == 0) {
    out.string(entry.name);
    out.varint(entry.assign_id);
  }
  out.u8(entry.request.has_value() ? 1 : 0);
  if (entry.request.has_value()) write_request(out, *entry.request);
  out.varint(entry.numbers.size());
  for (const auto number : entry.numbers) out.varint(static_cast<std::uint64_t>(number));
  if (kind == Plan::Kind::kInline) out.bytes(entry.result);
}

void write_plan(Writer& out, const Plan& plan) {
  out.varint(plan.number);
  out.u8(static_cast<std::uint8_t>(plan.kind));
  out.varint(plan.set);
  if (plan.kind == Plan::Kind::kFail) out.string(plan.error);
  out.varint(plan.entries.size());
  for (const PlanEntry& entry : plan.entries) write_entry(out, entry, plan.kind);
}

bool read_id(Reader& in, std::uint32_t& id) {
  const std::uint64_t value = in.varint();
  id = static_cast<std::uint32_t>(value);
  return value <= UINT32_MAX;
}

bool read_entry(Reader& in, PlanEntry& entry, Plan::Kind kind) {
  if (!read_id(in, entry.id)) return false;
  if (entry.id == 0) {
    entry.name = in.string();
    if (!read_id(in, entry.assign_id)) return false;
  }
  if (in.u8() != 0 && !read_request(in, entry.request.emplace())) return false;
  entry.numbers.resize(in.count());
  for (auto& number : entry.numbers) {
    const std::uint64_t value = in.varint();
    if (value > kMostRows) return false;
    number = static_cast<std::int64_t>(value);
  }
  if (kind == Plan::Kind::kInline) {
    const Bytes result = in.bytes();
    entry.result.assign(result.begin(), result.end());
  }
  return in.ok();
}

bool read_plan(Reader& in, Plan& plan) {
  plan.number = in.varint();
  plan.kind = in.enumerator<Plan::Kind>(Plan::kKindCount);
  if (!read_id(in, plan.set)) return false;
  if (plan.kind == Plan::Kind::kFail) plan.error = in.string();
  plan.entries.resize(in.count(kLeastEntryBytes));
  for (PlanEntry& entry : plan.entries) {
    if (!read_entry(in, entry, plan.kind)) return false;
  }
  return in.ok();
}

template <typename Item>
std::size_t count_for(const std::vector<Item>& items, int rank) {
  return static_cast<std::size_t>(std::count_if(
      items.begin(), items.end(), [&](const Item& item) { return item.members->contains(rank); }));
}

}  // namespace

bool Decisions::concern(int rank) const {
  return count_for(plans, rank) > 0 || count_for(retired, rank) > 0;
}

bool Decisions::concern_all(int world_size) const {
  const auto global = [&](const auto& item) { return item.members->size() == world_size; };
  return std::all_of(plans.begin(), plans.end(), global) &&
         std::all_of(retired.begin(), retired.end(), global);
}

void write_decisions(Writer& out, const Decisions& decisions, int rank) {
  out.varint(decisions.batch);
  const StallNotice& stall = decisions.stall;
  out.u8(
      static_cast<std::uint8_t>((decisions.tracing ? kTracing : 0) | (stall.empty() ? 0 : kStall)));
  if (!stall.empty()) {
    out.u8(stall.account_wanted ? 1 : 0);
    out.u8(stall.heard ? 1 : 0);
    out.string(stall.report);
  }
  out.varint(count_for(decisions.retired, rank));
  for (const Retired& item : decisions.retired) {
    if (item.members->contains(rank)) out.varint(item.id);
  }
  out.varint(count_for(decisions.plans, rank));
  for (const Plan& plan : decisions.plans) {
    if (plan.members->contains(rank)) write_plan(out, plan);
  }
}

bool read_decisions(Reader& in, Decisions& decisions) {
  decisions.batch = in.varint();
  const std::uint8_t flags = in.u8();
  if (flags > (kTracing | kStall)) return false;
  decisions.tracing = (flags & kTracing) != 0;
  if ((flags & kStall) != 0) {
    decisions.stall.account_wanted = in.u8() != 0;
    decisions.stall.heard = in.u8() != 0;
    decisions.stall.report = in.string();
  }
  decisions.retired.resize(in.count());
  for (Retired& item : decisions.retired) {
    if (!read_id(in, item.id)) return false;
  }
  decisions.plans.resize(in.count(kLeastPlanBytes));
  for (Plan& plan : decisions.plans) {
    if (!read_plan(in, plan)) return false;
  }
  return in.done();
}

void write_message_header(Writer& out, std::uint64_t acknowledged) { out.varint(acknowledged); }

void write_announced_id(Writer& out, std::uint32_t id, bool has_payload) {
  out.u8(static_cast<std::uint8_t>(has_payload ? ItemTag::kIdWithPayload : ItemTag::kId));
  out.varint(id);
}

void write_announced_request(Writer& out, const Request& request, bool has_payload) {
  out.u8(static_cast<std::uint8_t>(has_payload ? ItemTag::kRequestWithPayload : ItemTag::kRequest));
  write_request(out, request);
}

void write_traces(Writer& out, Bytes traces) {
  out.u8(static_cast<std::uint8_t>(ItemTag::kTrace));
  out.bytes(traces);
}

void write_item(Writer& out, const Complaints& complaints) {
  out.u8(static_cast<std::uint8_t>(ItemTag::kComplaints));
  write_complaints(out, complaints);
}

void write_item(Writer& out, const Account& account) {
  out.u8(static_cast<std::uint8_t>(ItemTag::kAccount));
  write_account(out, account);
}

}  // namespace khorovod
