#include "engine/plan.h"

namespace khorovod {

namespace {

void write_plan(Writer& out, const Plan& plan) {
  out.varint(plan.number);
  out.u8(static_cast<std::uint8_t>(plan.kind));
  if (plan.kind == Plan::Kind::kFail) out.string(plan.error);
  out.varint(plan.entries.size());
  for (const PlanEntry& entry : plan.entries) {
    out.varint(entry.id);
    if (entry.id == 0) {
      out.string(entry.name);
      out.varint(entry.assign_id);
    }
    if (plan.kind == Plan::Kind::kInline) out.bytes(entry.result);
  }
}

bool read_id(Reader& in, std::uint32_t& id) {
  const std::uint64_t value = in.varint();
  id = static_cast<std::uint32_t>(value);
  return value <= UINT32_MAX;
}

bool read_plan(Reader& in, Plan& plan) {
  plan.number = in.varint();
  plan.kind = in.enumerator<Plan::Kind>(Plan::kKindCount);
  if (plan.kind == Plan::Kind::kFail) plan.error = in.string();
  plan.entries.resize(in.count());
  for (PlanEntry& entry : plan.entries) {
    if (!read_id(in, entry.id)) return false;
    if (entry.id == 0) {
      entry.name = in.string();
      if (!read_id(in, entry.assign_id)) return false;
    }
    if (plan.kind == Plan::Kind::kInline) {
      const Bytes result = in.bytes();
      entry.result.assign(result.begin(), result.end());
    }
  }
  return in.ok();
}

}  // namespace

void write_decisions(Writer& out, const Decisions& decisions) {
  out.varint(decisions.batch);
  out.varint(decisions.retired.size());
  for (const auto id : decisions.retired) out.varint(id);
  out.varint(decisions.plans.size());
  for (const Plan& plan : decisions.plans) write_plan(out, plan);
}

bool read_decisions(Reader& in, Decisions& decisions) {
  decisions.batch = in.varint();
  decisions.retired.resize(in.count());
  for (auto& id : decisions.retired) {
    if (!read_id(in, id)) return false;
  }
  decisions.plans.resize(in.count());
  for (Plan& plan : decisions.plans) {
    if (!read_plan(in, plan)) return false;
  }
  return in.done();
}

void write_announcement_header(Writer& out, std::uint64_t acknowledged) {
  out.varint(acknowledged);
}

void write_announced_id(Writer& out, std::uint32_t id, bool has_payload) {
  out.u8(static_cast<std::uint8_t>(has_payload ? AnnouncementTag::kIdWithPayload
                                               : AnnouncementTag::kId));
  out.varint(id);
}

void write_announced_request(Writer& out, const Request& request, bool has_payload) {
  out.u8(static_cast<std::uint8_t>(has_payload ? AnnouncementTag::kRequestWithPayload
                                               : AnnouncementTag::kRequest));
  write_request(out, request);
}

}  // namespace khorovod
