// The coordinator's decisions, without threads or transport.
#include "engine/negotiator.h"

#include <random>

#include "engine/fusion.h"
#include "tests/check.h"

namespace khorovod::testing {

namespace {

Request request_of(const std::string& name, std::int64_t count = 1000) {
  Request request;
  request.name = name;
  request.tensors = {{DType::kFloat32, {count}}};
  return request;
}

Announcement in_full(const Request& request) {
  Announcement announcement;
  announcement.request = request;
  return announcement;
}

Announcement by_id(std::uint32_t id) {
  Announcement announcement;
  announcement.id = id;
  return announcement;
}

// Announces on every rank and returns the decisions.
Decisions agree(Negotiator& negotiator, int size, const Announcement& announcement) {
  for (int rank = 0; rank < size; ++rank) CHECK(negotiator.announce(rank, announcement, 0));
  return negotiator.decide();
}

std::vector<std::uint32_t> ids_of(const Decisions& decisions) {
  std::vector<std::uint32_t> ids;
  for (const Retired& retired : decisions.retired) ids.push_back(retired.id);
  return ids;
}

Request gather_of(const std::string& name, std::int64_t rows) {
  Request request = request_of(name);
  request.kind = OpKind::kAllgather;
  request.tensors = {{DType::kFloat32, {rows, 3}}};
  return request;
}

Request bare(OpKind kind, std::vector<std::int64_t> numbers = {}) {
  Request request;
  request.kind = kind;
  request.name = op_name(kind);
  request.cacheable = false;
  request.numbers = std::move(numbers);
  return request;
}

}  // namespace

TEST(nothing_is_ready_before_the_last_rank) {
  Negotiator negotiator(3, {});
  for (const int rank : {2, 0}) {
    CHECK(negotiator.announce(rank, in_full(request_of("x")), 7));
    CHECK(!negotiator.anything_ready());
  }
  const StalledTensor stalled = negotiator.waits_for({0, "x"});
  CHECK_EQ(stalled.label, "x");
  CHECK((stalled.waiting == std::vector<int>{0, 2}));
  CHECK((stalled.missing == std::vector<int>{1}));
  CHECK(negotiator.announce(1, in_full(request_of("x")), 9));
  CHECK(negotiator.anything_ready());
  const Decisions decisions = negotiator.decide();
  CHECK_EQ(decisions.plans.size(), 1u);
  CHECK_EQ(decisions.plans[0].entries[0].name, "x");
  CHECK(decisions.plans[0].entries[0].assign_id != 0);
  CHECK(negotiator.waits_for({0, "x"}).missing.empty());
}

TEST(plans_are_numbered_through_and_ids_stand_for_requests) {
  Negotiator negotiator(2, {});
  const Decisions first = agree(negotiator, 2, in_full(request_of("x")));
  const std::uint32_t id = first.plans[0].entries[0].assign_id;
  const Decisions second = agree(negotiator, 2, by_id(id));
  CHECK_EQ(second.plans[0].entries[0].id, id);
  CHECK_EQ(second.plans[0].number, first.plans[0].number + 1);
  CHECK_EQ(negotiator.cache_hits(), 2u);
}

TEST(a_rank_cannot_announce_twice_nor_an_unknown_id_nor_a_foreign_root) {
  Negotiator negotiator(2, {});
  CHECK(negotiator.announce(1, in_full(request_of("x")), 0));
  CHECK(!negotiator.announce(1, in_full(request_of("x")), 0));
  CHECK(!negotiator.announce(0, by_id(99), 0));
  Request wild = request_of("y");
  wild.kind = OpKind::kBroadcast;
  wild.root = 2;
  CHECK(!negotiator.announce(0, in_full(wild), 0));
  wild.root = -1;
  CHECK(!negotiator.announce(0, in_full(wild), 0));
}

TEST(a_payload_of_another_size_is_refused) {
  Negotiator negotiator(2, {});
  const std::vector<std::byte> bytes(8);
  Announcement announcement = in_full(request_of("x", 3));
  announcement.has_payload = true;
  announcement.payload = bytes;
  CHECK(!negotiator.announce(0, announcement, 0));
}

TEST(small_tensors_are_answered_inline_only_if_every_rank_sent_its_data) {
  Negotiator negotiator(2, {});
  const std::vector<float> data{1.5f, 2.0f};
  Announcement with_data = in_full(request_of("x", 2));
  with_data.has_payload = true;
  with_data.payload = std::as_bytes(std::span(data));
  const Decisions all = agree(negotiator, 2, with_data);
  CHECK(all.plans[0].kind == Plan::Kind::kInline);
  float sum = 0;
  std::memcpy(&sum, all.plans[0].entries[0].result.data(), sizeof sum);
  CHECK_EQ(sum, 3.0f);

  CHECK(negotiator.announce(0, with_data, 0));
  CHECK(negotiator.announce(1, in_full(request_of("x", 2)), 0));
  CHECK(negotiator.decide().plans[0].kind == Plan::Kind::kRun);
}

TEST(a_retired_id_is_understood_until_every_rank_has_heard) {
  NegotiatorOptions options;
  options.cache_capacity = 1;
  Negotiator negotiator(2, options);
  const std::uint32_t old =
      agree(negotiator, 2, in_full(request_of("x"))).plans[0].entries[0].assign_id;
  const Decisions evicting = agree(negotiator, 2, in_full(request_of("y")));
  CHECK((ids_of(evicting) == std::vector<std::uint32_t>{old}));
  CHECK(negotiator.announce(0, by_id(old), 0));  // had not heard yet
  negotiator.acknowledge(0, evicting.batch);
  CHECK(negotiator.announce(1, in_full(request_of("x")), 0));
  const Decisions again = negotiator.decide();
  CHECK(again.plans[0].kind == Plan::Kind::kRun);
  CHECK_EQ(again.plans[0].entries[0].name, "x");
  negotiator.acknowledge(1, evicting.batch);
  CHECK(!negotiator.announce(0, by_id(old), 0));
}

TEST(new_parameters_under_an_old_name) {
  Negotiator negotiator(2, {});
  const std::uint32_t old =
      agree(negotiator, 2, in_full(request_of("x", 10))).plans[0].entries[0].assign_id;
  const Decisions changed = agree(negotiator, 2, in_full(request_of("x", 11)));
  CHECK(changed.plans[0].kind == Plan::Kind::kRun);
  CHECK((ids_of(changed) == std::vector<std::uint32_t>{old}));
  // One rank still sends the old request: an error that names both, whoever comes first.
  CHECK(negotiator.announce(1, in_full(request_of("x", 12)), 0));
  CHECK(negotiator.announce(0, by_id(changed.plans[0].entries[0].assign_id), 0));
  const Decisions failed = negotiator.decide();
  CHECK(failed.plans[0].kind == Plan::Kind::kFail);
  CHECK(failed.plans[0].error.find("rank 1 has [12], rank 0 has [11]") != std::string::npos);
}

TEST(mismatches_are_found_in_the_documented_order) {
  Request a = request_of("x", 10);
  Request b = request_of("x", 11);
  b.root = 1;
  b.reduce = ReduceOp::kAverage;
  b.postscale = 2.0;
  b.tensors[0].dtype = DType::kInt32;
  b.kind = OpKind::kBroadcast;
  const auto expect = [&](const char* stem) {
    const std::string text = mismatch(a, 3, b, 5);
    CHECK(text.find(stem) != std::string::npos);
    CHECK(text.find("rank 3") != std::string::npos);
    CHECK(text.find("rank 5") != std::string::npos);
  };
  expect("Mismatched data types");
  b.tensors[0].dtype = DType::kFloat32;
  expect("Mismatched operations");
  b.kind = a.kind;
  b.grouped = true;
  expect("Mismatched group sizes");
  b.grouped = false;
  expect("Mismatched ALLREDUCE tensor shapes");
  b.tensors = a.tensors;
  expect("Mismatched prescale and/or postscale factors");
  b.postscale = a.postscale;
  b.compression = Compression::kFloat16;
  expect("Mismatched compression");
  b.compression = a.compression;
  expect("Mismatched reduction operation");
  b.reduce = a.reduce;
  expect("Mismatched BROADCAST root ranks");
  b.root = a.root;
  CHECK_EQ(mismatch(a, 3, b, 5), "");
}

TEST(fusion_keeps_kinds_apart_and_respects_the_threshold) {
  const Request f = request_of("f", 10);
  Request average = f;
  average.reduce = ReduceOp::kAverage;
  Request sent = f;
  sent.kind = OpKind::kBroadcast;
  const std::vector<Fusable> ready = {{&f, 40},    {&average, 40}, {&f, 40},
                                      {&sent, 40}, {&f, 40},       {&f, 1000}};
  CHECK((fuse(ready, {100}) == std::vector<std::vector<std::size_t>>{{0, 2}, {1}, {3}, {4}, {5}}));
  CHECK_EQ(fuse(ready, {0}).size(), ready.size());
  CHECK((fuse(ready, {1 << 20}) == std::vector<std::vector<std::size_t>>{{0, 2, 4, 5}, {1}, {3}}));
  CHECK(fuse({}, {100}).empty());
}

TEST(groups_may_have_to_travel_alone) {
  Request group = request_of("g", 10);
  group.grouped = true;
  const Request single = request_of("s", 10);
  const std::vector<Fusable> ready = {{&group, 40}, {&single, 40}, {&group, 40}};
  CHECK_EQ(fuse(ready, {1000, false}).size(), 1u);
  CHECK_EQ(fuse(ready, {1000, true}).size(), 3u);
}

TEST(ranks_may_gather_different_numbers_of_rows) {
  Negotiator negotiator(2, {});
  CHECK(negotiator.announce(0, in_full(gather_of("x", 2)), 0));
  CHECK(negotiator.announce(1, in_full(gather_of("x", 5)), 0));
  const Decisions first = negotiator.decide();
  CHECK((first.plans[0].entries[0].numbers == std::vector<std::int64_t>{2, 5}));
  const std::uint32_t id = first.plans[0].entries[0].assign_id;
  // By id each means its own rows; with other rows the id means nothing any more, to anybody.
  CHECK((agree(negotiator, 2, by_id(id)).plans[0].entries[0].numbers ==
         std::vector<std::int64_t>{2, 5}));
  CHECK(negotiator.announce(0, by_id(id), 0));
  CHECK(negotiator.announce(1, in_full(gather_of("x", 7)), 0));
  const Decisions changed = negotiator.decide();
  CHECK((changed.plans[0].entries[0].numbers == std::vector<std::int64_t>{2, 7}));
  CHECK((ids_of(changed) == std::vector<std::uint32_t>{id}));
  CHECK(negotiator.announce(1, by_id(id), 0));  // had not heard yet: means 5 rows
  CHECK(negotiator.announce(0, in_full(gather_of("x", 1)), 0));
  CHECK((negotiator.decide().plans[0].entries[0].numbers == std::vector<std::int64_t>{1, 5}));
}

TEST(process_sets_have_names_and_plans_of_their_own) {
  Negotiator negotiator(3, {});
  const Decisions added =
      agree(negotiator, 3, in_full(bare(OpKind::kAddProcessSets, {2, 0, 2, 2, 1, 2})));
  CHECK((added.plans[0].entries[0].numbers == std::vector<std::int64_t>{1, 2}));
  Request x = request_of("x");
  x.set = 1;
  CHECK(negotiator.announce(0, in_full(x), 0));
  CHECK(!negotiator.announce(1, in_full(x), 0));  // not a member
  CHECK(negotiator.announce(1, in_full(request_of("x")), 0));
  CHECK(negotiator.announce(2, in_full(x), 0));
  const Decisions decided = negotiator.decide();
  CHECK_EQ(decided.plans.size(), 1u);
  CHECK_EQ(decided.plans[0].set, 1u);
  CHECK(decided.concern(2) && !decided.concern(1));
  // Once removed, late announcements are dropped, and the id is free.
  CHECK(!agree(negotiator, 3, in_full(bare(OpKind::kRemoveProcessSet, {1}))).plans.empty());
  CHECK(negotiator.announce(2, in_full(x), 0));
  CHECK((agree(negotiator, 3, in_full(bare(OpKind::kAddProcessSets, {1, 0})))
             .plans[0]
             .entries[0]
             .numbers == std::vector<std::int64_t>{1}));
}

TEST(process_sets_that_make_no_sense_are_refused) {
  const std::vector<std::vector<std::int64_t>> bad = {{2, 0}, {2, 1, 0}, {1, 3}, {0}, {2, 1, 1}};
  for (const auto& numbers : bad) {
    Negotiator negotiator(3, {});
    const Decisions decided = agree(negotiator, 3, in_full(bare(OpKind::kAddProcessSets, numbers)));
    CHECK(decided.plans[0].kind == Plan::Kind::kFail);
  }
}

TEST(a_rank_that_has_joined_is_not_waited_for) {
  Negotiator negotiator(3, {});
  CHECK(negotiator.announce(0, in_full(request_of("x")), 0));
  CHECK(negotiator.announce(2, in_full(bare(OpKind::kJoin)), 0));
  CHECK(!negotiator.anything_ready());
  CHECK(negotiator.announce(1, in_full(request_of("x")), 0));
  const Decisions run = negotiator.decide();
  CHECK(run.plans[0].kind == Plan::Kind::kRun);
  CHECK(run.plans[0].entries[0].request == request_of("x"));
  for (const int rank : {0, 1}) CHECK(negotiator.announce(rank, in_full(gather_of("g", 1)), 0));
  const Decisions refused = negotiator.decide();
  CHECK(refused.plans[0].kind == Plan::Kind::kFail);
  CHECK(refused.plans[0].error.find("rank(s) 2 called join()") != std::string::npos);
  CHECK(negotiator.announce(1, in_full(bare(OpKind::kJoin)), 0));
  CHECK(negotiator.announce(0, in_full(bare(OpKind::kJoin)), 0));
  const Decisions joined = negotiator.decide();
  CHECK((joined.plans[0].entries[0].numbers == std::vector<std::int64_t>{0, 0}));
  CHECK(agree(negotiator, 3, in_full(request_of("x"))).plans.size() == 1);
}

TEST(sets_with_a_member_that_has_joined_are_refused) {
  Negotiator negotiator(3, {});
  static_cast<void>(agree(negotiator, 3, in_full(bare(OpKind::kAddProcessSets, {2, 0, 2}))));
  Request x = request_of("x");
  x.set = 1;
  CHECK(negotiator.announce(0, in_full(x), 0));
  CHECK(negotiator.announce(2, in_full(bare(OpKind::kJoin)), 0));
  const Decisions refused = negotiator.decide();
  CHECK(refused.plans[0].kind == Plan::Kind::kFail);
  CHECK(refused.plans[0].error.find("x [process set 1]") != std::string::npos);
  for (const int rank : {0, 1}) {
    CHECK(negotiator.announce(rank, in_full(bare(OpKind::kRemoveProcessSet, {1})), 0));
  }
  CHECK(negotiator.decide().plans[0].kind == Plan::Kind::kFail);
}

TEST(messages_survive_the_wire_and_damage_is_noticed) {
  Decisions sent;
  sent.batch = 300;
  const MembersRef all = all_ranks(2);
  sent.retired = {{1, all}, {70'000, all}};
  Plan plan;
  plan.number = 9;
  plan.kind = Plan::Kind::kInline;
  plan.members = all;
  plan.entries.push_back({0, "name", 5, request_of("name"), {4, 5}, {std::byte{1}, std::byte{2}}});
  plan.entries.push_back({7, "", 0, {}, {}, {}});
  sent.plans.push_back(plan);
  Writer out;
  write_decisions(out, sent, 1);
  Reader in(out.view());
  Decisions got;
  CHECK(read_decisions(in, got));
  CHECK_EQ(got.batch, 300u);
  CHECK(ids_of(got) == ids_of(sent));
  CHECK(got.plans[0].entries[0].request == plan.entries[0].request);
  CHECK(got.plans[0].entries[0].numbers == plan.entries[0].numbers);
  CHECK_EQ(got.plans[0].entries[0].name, "name");
  CHECK(got.plans[0].entries[0].result == plan.entries[0].result);
  CHECK_EQ(got.plans[0].entries[1].id, 7u);
  for (std::size_t size = 0; size < out.size(); ++size) {
    Reader cut(out.view().first(size));
    Decisions ignored;
    CHECK(!read_decisions(cut, ignored));
  }
}

TEST(random_bytes_never_break_the_readers) {
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() % (round % 2 == 0 ? 256 : 8));
    Reader in(bytes);
    Decisions decisions;
    static_cast<void>(read_decisions(in, decisions));
    std::uint64_t acknowledged = 0;
    Negotiator negotiator(2, {});
    static_cast<void>(read_message(
        bytes, acknowledged,
        [&](const Announcement& announcement) { return negotiator.announce(1, announcement, 0); },
        [](Bytes) {}, [](const Complaints&) {}, [](const Account&) {}));
    if (negotiator.anything_ready()) static_cast<void>(negotiator.decide());
  }
}

}  // namespace khorovod::testing

TEST_MAIN()
