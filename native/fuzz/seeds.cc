// Inputs as correct peers send them, from which the fuzzing starts.
#include <cstring>

#include "engine/plan.h"
#include "engine/trace.h"
#include "fuzz/targets.h"
#include "planes/tcp_lane.h"

namespace khorovod::fuzz {

namespace {

Input input_of(const Writer& out) { return {out.view().begin(), out.view().end()}; }

Request request_of(OpKind kind, const std::string& name, std::vector<TensorSpec> tensors = {},
                   std::vector<std::int64_t> numbers = {}) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.grouped = tensors.size() > 1;
  request.tensors = std::move(tensors);
  request.numbers = std::move(numbers);
  return request;
}

std::vector<Request> requests() {
  std::vector<Request> all{
      request_of(OpKind::kAllreduce, "a", {{DType::kFloat32, {7}}}),
      request_of(OpKind::kAllreduce, "b", {{DType::kFloat64, {3}}, {DType::kInt32, {2, 2}}}),
      request_of(OpKind::kBroadcast, "c", {{DType::kBool, {}}}),
      request_of(OpKind::kAllgather, "d", {{DType::kFloat16, {3, 2}}}),
      request_of(OpKind::kAlltoall, "e", {{DType::kInt64, {6, 1}}}, {1, 0, 2, 3}),
      request_of(OpKind::kReducescatter, "f", {{DType::kBfloat16, {9, 1}}}),
      request_of(OpKind::kBarrier, "g"),
      request_of(OpKind::kJoin, "h", {}, {3}),
      request_of(OpKind::kAddProcessSets, "i", {}, {2, 0, 1, 3, 0, 1, 2}),
      request_of(OpKind::kRemoveProcessSet, "j", {}, {1}),
  };
  all[0].compression = Compression::kFloat16;
  all[0].prescale = 0.5;
  all.push_back(request_of(OpKind::kAllreduce, "k", {{DType::kFloat32, {9}}}));
  all.back().reduce = ReduceOp::kAdasum;
  all.push_back(request_of(OpKind::kAllgather, "l", {{DType::kFloat32, {5, 2}}}));
  all.back().handed = Handed::kOnGpu;
  return all;
}

// What travels with an announcement of a request.
std::size_t payload_of(const Request& request) {
  std::size_t bytes = 0;
  for (const TensorSpec& tensor : request.tensors) {
    bytes += tensor.elements() * dtype_size(wire_type(tensor.dtype, request.compression));
  }
  return bytes;
}

void add_message(Writer& out, int peer, const Writer& message) {
  out.u8(static_cast<std::uint8_t>(peer));
  out.bytes(message.view());
}

// All ranks announce all of the requests, one after the other; then again, by the ids they got.
// Alike: in one message, which stands for that of every rank.
Input announcements(const std::vector<Request>& all, bool with_payload, bool alike) {
  Writer out;
  for (int round = 0; round < 2; ++round) {
    std::uint32_t id = 0;
    for (const Request& request : all) {
      ++id;
      for (int peer = 0; peer < (alike ? 1 : kRanks); ++peer) {
        const bool roots = request.kind != OpKind::kBroadcast || peer == request.root;
        const bool payload = with_payload && roots && request.kind < OpKind::kBarrier &&
                             request.kind != OpKind::kAlltoall && !request.is_handed();
        Writer message;
        write_message_header(message, id);
        if (round == 0) {
          write_announced_request(message, request, payload);
        } else {
          write_announced_id(message, id, payload);
        }
        if (payload) std::memset(message.reserve(payload_of(request)), 1, payload_of(request));
        if (peer == 1) write_traces(message, Input(3));
        if (peer == 2) write_item(message, Complaints{round == 1, {{0, request.name, 61}}});
        if (peer == 3) write_item(message, Account{"a line", {"pending"}, {"done", "before"}});
        add_message(out, alike ? kAllAlike : peer, message);
      }
    }
  }
  return input_of(out);
}

Decisions decisions_of(std::vector<Plan> plans) {
  static const MembersRef everybody = all_ranks(kRanks);
  Decisions decisions;
  decisions.batch = 1;
  decisions.retired = {{77, everybody}};
  for (Plan& plan : plans) {
    plan.members = everybody;
    plan.number = ++decisions.batch;
  }
  decisions.plans = std::move(plans);
  return decisions;
}

PlanEntry entry_of(const std::string& name, std::vector<std::int64_t> numbers = {},
                   std::size_t result = 0) {
  PlanEntry entry;
  entry.name = name;
  entry.numbers = std::move(numbers);
  entry.result.resize(result);
  return entry;
}

Plan plan_of(Plan::Kind kind, std::vector<PlanEntry> entries) {
  Plan plan;
  plan.kind = kind;
  plan.entries = std::move(entries);
  if (kind == Plan::Kind::kFail) plan.error = "they disagree";
  return plan;
}

// What completes the operations of run_engine.
std::vector<Decisions> all_decisions() {
  using Kind = Plan::Kind;
  PlanEntry cached = entry_of("a");
  cached.assign_id = 9;
  PlanEntry stands_in = entry_of("x");
  stands_in.request = request_of(OpKind::kAllreduce, "x", {{DType::kFloat32, {5}}});
  stands_in.assign_id = 10;
  std::vector<Decisions> all;
  all.push_back(
      decisions_of({plan_of(Kind::kRun, {cached}), plan_of(Kind::kRun, {entry_of("b")})}));
  all.push_back(
      decisions_of({plan_of(Kind::kRun, {entry_of("c")}), plan_of(Kind::kRun, {entry_of("d")}),
                    plan_of(Kind::kRun, {entry_of("e")})}));
  all.push_back(decisions_of({plan_of(
      Kind::kRun, {entry_of("f", {1, 3, 0, 2}), entry_of("g", {1, 3, 0, 2, 0, 0, 5, 1})})}));
  all.push_back(decisions_of(
      {plan_of(Kind::kRun, {entry_of("h", {1, 2, 0, 0, 1, 0, 2, 3, 0, 1, 0, 0, 4, 4, 4, 4})})}));
  all.push_back(decisions_of(
      {plan_of(Kind::kRun, {entry_of("i")}), plan_of(Kind::kInline, {entry_of("j")})}));
  all.push_back(decisions_of({plan_of(Kind::kInline, {entry_of("a", {}, 28)}),
                              plan_of(Kind::kInline, {entry_of("f", {1, 3, 0, 2}, 48)}),
                              plan_of(Kind::kInline, {entry_of("i", {}, 108)})}));
  all.push_back(decisions_of({plan_of(Kind::kInline, {entry_of("k", {2, 5})}),
                              plan_of(Kind::kInline, {entry_of("l", {1})}),
                              plan_of(Kind::kInline, {entry_of("m")})}));
  all.push_back(
      decisions_of({plan_of(Kind::kFail, {entry_of("a")}), plan_of(Kind::kRun, {stands_in})}));
  all.push_back(decisions_of({}));
  all.back().stall = {.account_wanted = true, .heard = true, .report = "rank 2 is late"};
  return all;
}

Input written(const Decisions& decisions) {
  Writer out;
  write_decisions(out, decisions, 1);
  return input_of(out);
}

void add_frame(Input& stream, std::uint8_t tag, const Input& rest) {
  const auto size = static_cast<std::uint32_t>(rest.size() + 1);
  const auto* bytes = reinterpret_cast<const std::byte*>(&size);
  stream.insert(stream.end(), bytes, bytes + sizeof size);
  stream.push_back(static_cast<std::byte>(tag));
  stream.insert(stream.end(), rest.begin(), rest.end());
}

}  // namespace

std::vector<Input> decision_seeds() {
  std::vector<Input> seeds;
  for (const Decisions& decisions : all_decisions()) seeds.push_back(written(decisions));
  return seeds;
}

std::vector<Input> link_seeds() {
  Input departure;
  Input abort;
  Writer words;
  words.string("why");
  Writer departed;
  departed.u8(2);
  departed.string("why");
  Writer broken;
  broken.u8(3);  // the code, the rank plus one, the message
  broken.u8(2);
  broken.string("no");
  add_frame(departure, 2, input_of(departed));
  add_frame(departure, 1, input_of(words));
  add_frame(abort, 3, input_of(broken));
  std::vector<Input> seeds{departure, abort};
  for (const Input& message : decision_seeds()) add_frame(seeds.emplace_back(), 0, message);
  return seeds;
}

std::vector<Input> coordinator_seeds() {
  std::vector<Input> seeds;
  for (const Request& request : requests()) {
    for (const bool alike : {false, true}) {
      seeds.push_back(announcements({request}, false, alike));
      seeds.push_back(announcements({request}, true, alike));
    }
  }
  seeds.push_back(announcements(requests(), true, false));
  seeds.push_back(announcements(requests(), false, true));
  return seeds;
}

std::vector<Input> trace_seeds() {
  Writer out;
  write_trace(out,
              OperationTrace{"name", "ALLREDUCE", "SHM", "float32", {2, 3}, 1, 2, 3, 4, false});
  write_trace(out, ReadyTrace{"name", "ALLREDUCE", {{0, 1}, {1, 2}}});
  write_trace(out, CycleTrace{5});
  return {input_of(out)};
}

std::vector<Input> engine_seeds() {
  std::vector<Input> seeds;
  for (const bool joins : {false, true}) {
    Writer everything;
    everything.u8(joins ? 1 : 0);
    for (const Input& message : decision_seeds()) {
      Writer one;
      one.u8(joins ? 1 : 0);
      for (Writer* out : {&one, &everything}) {
        out->u8(0);
        out->bytes(message);
      }
      seeds.push_back(input_of(one));
    }
    seeds.push_back(input_of(everything));
  }
  return seeds;
}

// Chunks of the works of run_plane, as far as one side alone gets.
std::vector<Input> plane_seeds() {
  Input stream;
  const auto item = [&](std::uint64_t plan, std::uint32_t what, std::uint32_t bytes) {
    const ItemHeader header{plan, what, bytes};
    const auto* raw = reinterpret_cast<const std::byte*>(&header);
    stream.insert(stream.end(), raw, raw + sizeof header);
    stream.resize(stream.size() + bytes);
  };
  // Chunks of 32 elements; the second half of the first is what rank 1 reduces.
  for (const std::uint32_t chunk : {0U, 1U}) {
    item(1, chunk << 1, 64);
    item(1, chunk << 1 | 1, 64);
  }
  item(1, 2U << 1, 64);
  item(1, 2U << 1 | 1, 40);
  for (const std::uint32_t chunk : {0U, 1U}) item(2, chunk << 1, 128);
  return {stream};
}

}  // namespace khorovod::fuzz
