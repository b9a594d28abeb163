// Messages that are well formed, but that no correct rank can have sent: mutations hardly ever hit
// upon them. Each would be a wrong access to memory if it were believed.
#include <limits>

#include "engine/negotiator.h"
#include "fuzz/targets.h"
#include "tests/check.h"

namespace khorovod::testing {

namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 61;

Request request_of(OpKind kind, std::vector<TensorSpec> tensors,
                   std::vector<std::int64_t> numbers = {}) {
  Request request;
  request.kind = kind;
  request.name = "x";
  request.grouped = tensors.size() > 1;
  request.tensors = std::move(tensors);
  request.numbers = std::move(numbers);
  return request;
}

bool understood(const Request& request) {
  Writer out;
  write_request(out, request);
  Reader in(out.view());
  Request read;
  return read_request(in, read) && in.done() && read == request;
}

const TensorSpec kFloats{DType::kFloat32, {4, 3}};

template <typename Change>
Request changed(Request request, Change change) {
  CHECK(understood(request));
  change(request);
  return request;
}

TEST(sizes_that_overflow) {
  CHECK(!understood(request_of(OpKind::kAllreduce, {{DType::kUint8, {kHuge, 3}}})));
  CHECK(!understood(request_of(OpKind::kAllreduce, {{DType::kFloat64, {kHuge, 8}}})));
  const TensorSpec large{DType::kUint8, {kHuge}};
  CHECK(understood(request_of(OpKind::kAllreduce, {large, large})));
  CHECK(!understood(request_of(OpKind::kAllreduce, {large, large, large})));
}

TEST(what_is_moved_is_not_compressed) {
  const auto compress = [](Request& r) { r.compression = Compression::kFloat16; };
  CHECK(understood(changed(request_of(OpKind::kAllreduce, {kFloats}), compress)));
  CHECK(!understood(changed(request_of(OpKind::kAllgather, {kFloats}), compress)));
  CHECK(!understood(changed(request_of(OpKind::kBroadcast, {kFloats}), compress)));
}

TEST(reductions_that_no_kernel_knows) {
  const Request flags = changed(request_of(OpKind::kAllreduce, {kFloats}), [](Request& r) {
    r.tensors = {{DType::kBool, {4}}};
    r.reduce = ReduceOp::kMax;
  });
  CHECK(!understood(changed(flags, [](Request& r) { r.reduce = ReduceOp::kSum; })));
  CHECK(!understood(changed(flags, [](Request& r) { r.postscale = 0.5; })));
  const Request adasum = changed(request_of(OpKind::kAllreduce, {kFloats}),
                                 [](Request& r) { r.reduce = ReduceOp::kAdasum; });
  CHECK(!understood(changed(adasum, [](Request& r) { r.tensors.front().dtype = DType::kInt32; })));
  const Request scattered = request_of(OpKind::kReducescatter, {kFloats});
  CHECK(!understood(changed(scattered, [](Request& r) { r.reduce = ReduceOp::kMax; })));
  CHECK(!understood(changed(
      scattered, [](Request& r) { r.prescale = std::numeric_limits<double>::infinity(); })));
}

TEST(adasum_of_three) {
  Request request = request_of(OpKind::kAllreduce, {kFloats});
  request.reduce = ReduceOp::kAdasum;
  Announcement announcement;
  announcement.request = request;
  CHECK(Negotiator(4, {}).announce(1, announcement, 0));
  CHECK(!Negotiator(3, {}).announce(1, announcement, 0));
}

TEST(splits_beyond_the_tensor) {
  const Request whole = request_of(OpKind::kAlltoall, {kFloats}, {1, 3});
  CHECK(!understood(changed(whole, [](Request& r) { r.numbers = {2, 3}; })));
  CHECK(!understood(changed(whole, [](Request& r) { r.numbers = {INT64_MAX, INT64_MAX}; })));
  CHECK(!understood(changed(whole, [](Request& r) {
    r.grouped = true;
    r.tensors.clear();
  })));
}

TEST(changes_of_the_world_within_a_set) {
  for (const OpKind kind : {OpKind::kJoin, OpKind::kAddProcessSets, OpKind::kRemoveProcessSet}) {
    const Request request = request_of(kind, {}, {1});
    CHECK(!understood(changed(request, [](Request& r) { r.set = 1; })));
  }
}

TEST(results_that_no_memory_holds) {
  const TensorSpec wide{DType::kFloat32, {2, std::int64_t{1} << 20}};
  CHECK(wide.can_have(1 << 20));
  CHECK(!wide.can_have(std::int64_t{1} << 42));  // the product is 2^64: nothing, if it wrapped
  CHECK(!wide.can_have(-1));
}

// -- Decisions, as the engine of rank 1 gets them (see run_engine for what it has submitted)

PlanEntry entry_of(const std::string& name, std::vector<std::int64_t> numbers = {}) {
  PlanEntry entry;
  entry.name = name;
  entry.numbers = std::move(numbers);
  return entry;
}

void decide(bool joins, Plan::Kind kind, std::vector<PlanEntry> entries) {
  const MembersRef everybody = all_ranks(fuzz::kRanks);
  Decisions decisions;
  Plan& plan = decisions.plans.emplace_back();
  plan.kind = kind;
  plan.members = everybody;
  plan.entries = std::move(entries);
  Writer message;
  write_decisions(message, decisions, 1);
  Writer input;
  input.u8(joins ? 1 : 0);
  input.u8(0);
  input.bytes(message.view());
  fuzz::run_engine(input.view());
}

PlanEntry stand_in(const std::string& name, OpKind kind, const std::string& other_name) {
  PlanEntry entry = entry_of(name, {4, 4, 4, 4});
  entry.request = request_of(kind, {kFloats});
  entry.request->name = other_name;
  entry.assign_id = 7;
  return entry;
}

TEST(plans_of_different_kinds) {
  decide(false, Plan::Kind::kRun, {entry_of("a"), entry_of("f", {1, 3, 0, 2})});
  decide(false, Plan::Kind::kRun, {entry_of("f", {1, 3, 0, 2}), entry_of("a")});
  decide(false, Plan::Kind::kRun, {entry_of("i"), entry_of("j")});
  decide(false, Plan::Kind::kRun, {entry_of("h", std::vector<std::int64_t>(16)), entry_of("h")});
}

TEST(rows_that_wrap) {
  const std::int64_t most = std::int64_t{1} << 44;
  decide(false, Plan::Kind::kRun, {entry_of("f", {most, 3, most, most})});
  decide(false, Plan::Kind::kInline, {entry_of("f", {most, 3, most, most})});
}

TEST(results_without_their_numbers) {
  decide(true, Plan::Kind::kInline, {entry_of("k")});
  decide(false, Plan::Kind::kInline, {entry_of("h")});
  decide(false, Plan::Kind::kInline, {entry_of("l", {1, 2, 3})});
}

TEST(stand_ins_for_what_has_none) {
  decide(true, Plan::Kind::kRun, {stand_in("x", OpKind::kAllgather, "x")});
  decide(true, Plan::Kind::kRun, {stand_in("x", OpKind::kReducescatter, "x")});
  // Two entries of the cache under one name would leave an id behind that points nowhere.
  decide(true, Plan::Kind::kRun,
         {stand_in("x", OpKind::kAllreduce, "x"), stand_in("y", OpKind::kAllreduce, "x")});
}

}  // namespace

}  // namespace khorovod::testing

TEST_MAIN()
