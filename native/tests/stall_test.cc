// When ranks complain of a stall, and what a report says.
#include "engine/stall.h"

#include "tests/check.h"

namespace khorovod::testing {

namespace {

constexpr StallRules kRules{.warn = 60 * kSecond, .shutdown = 100 * kSecond};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

StalledRank answering(std::string name, std::string place) {
  return {.name = std::move(name),
          .pid = 7,
          .answered = true,
          .account = {std::move(place), {"b"}, {"z", "y"}}};
}

}  // namespace

TEST(nothing_waits_nothing_is_said) {
  StallClock clock(kRules);
  CHECK(clock.look(0, 1000 * kSecond) == StallVerdict::kFine);
}

TEST(warns_at_the_limit_and_again_after_as_much) {
  StallClock clock({.warn = 60 * kSecond});
  CHECK(clock.look(kSecond, 60 * kSecond) == StallVerdict::kFine);
  CHECK(clock.look(kSecond, 61 * kSecond) == StallVerdict::kWarn);
  CHECK(clock.look(kSecond, 62 * kSecond) == StallVerdict::kFine);
  CHECK(clock.look(kSecond, 121 * kSecond) == StallVerdict::kWarn);
  CHECK(clock.look(kSecond, 100'000 * kSecond) == StallVerdict::kWarn);
}

TEST(another_operation_does_not_make_it_warn_sooner) {
  StallClock clock({.warn = 60 * kSecond});
  CHECK(clock.look(kSecond, 61 * kSecond) == StallVerdict::kWarn);
  CHECK(clock.look(2 * kSecond, 62 * kSecond) == StallVerdict::kFine);
}

TEST(ends_at_the_second_limit_and_insists) {
  StallClock clock(kRules);
  CHECK(clock.look(kSecond, 61 * kSecond) == StallVerdict::kWarn);
  CHECK(clock.look(kSecond, 101 * kSecond) == StallVerdict::kEnd);
  CHECK(clock.look(kSecond, 101 * kSecond + kMillisecond) == StallVerdict::kFine);
  CHECK(clock.look(kSecond, 103 * kSecond) == StallVerdict::kEnd);
}

TEST(switched_off_it_says_nothing) {
  StallClock clock({});
  CHECK(clock.look(1, 1'000'000 * kSecond) == StallVerdict::kFine);
}

TEST(complaints_and_accounts_travel) {
  Writer out;
  write_complaints(out, {true, {{3, "a", 61 * kSecond}, {0, "", 0}}});
  write_account(out, {"here\nthere", {"p"}, {"x", "y"}});
  Reader in(out.view());
  Complaints complaints;
  Account account;
  CHECK(read_complaints(in, complaints));
  CHECK(read_account(in, account));
  CHECK(in.done());
  CHECK(complaints.final);
  CHECK_EQ(complaints.items.size(), 2u);
  CHECK_EQ(complaints.items[0].name, "a");
  CHECK_EQ(complaints.items[0].set, 3u);
  CHECK_EQ(complaints.items[0].waited, 61 * kSecond);
  CHECK_EQ(account.place, "here\nthere");
  CHECK((account.pending == std::vector<std::string>{"p"}));
  CHECK((account.done == std::vector<std::string>{"x", "y"}));
}

TEST(a_report_names_who_what_and_where) {
  const std::vector<StalledTensor> tensors = {{"a", 61 * kSecond, {0, 2}, {1}}};
  const std::map<int, StalledRank> ranks = {
      {0, answering("rank 0 (host h, pid 6)", "train.py:9 in step")},
      {1, answering("rank 1 (host h, pid 7)", "data.py:3 in load\ntrain.py:8 in step")}};
  const StallReport report = report_stall(tensors, ranks, kRules);
  CHECK_EQ(report.summary,
           "rank 1 (host h, pid 7) has not submitted 'a' for 61 s and is at data.py:3 in load");
  CHECK(has(report.text, "stalled for 61 s: 1 operation waits"));
  CHECK(has(report.text, "rank 1 (host h, pid 7) has not submitted 'a'"));
  CHECK(has(report.text, "waiting: ranks 0, 2"));
  CHECK(has(report.text,
            "rank 1 (host h, pid 7) is at data.py:3 in load\n"
            "      at train.py:8 in step\n"
            "    waits for 'b'\n"
            "    has completed, the latest first: 'z', 'y'\n"));
  CHECK(has(report.text, "rank 0 (host h, pid 6) is at train.py:9 in step"));
  CHECK(has(report.text, "The job ends after 100 s"));
}

TEST(a_rank_that_does_not_answer_is_judged_by_its_process) {
  const std::vector<StalledTensor> tensors = {{"a", 61 * kSecond, {0}, {1}}};
  StalledRank silent{.name = "rank 1 (host h, pid 7)", .pid = 7};
  silent.state = 'T';
  CHECK(has(report_stall(tensors, {{1, silent}}, kRules).summary, "is stopped"));
  CHECK(has(report_stall(tensors, {{1, silent}}, kRules).text, "kill -CONT 7"));
  silent.state = 'R';
  CHECK(has(report_stall(tensors, {{1, silent}}, kRules).text, "native code holds its Python"));
  silent.state = '?';
  CHECK(has(report_stall(tensors, {{1, silent}}, kRules).text, "does not answer"));
}

TEST(a_report_of_many_stays_short) {
  std::vector<StalledTensor> tensors;
  std::vector<int> missing;
  for (int rank = 1; rank < 500; ++rank) missing.push_back(rank);
  for (int i = 0; i < 1000; ++i) {
    tensors.push_back({"tensor." + std::to_string(i), 61 * kSecond, {0}, missing});
  }
  const StallReport report = report_stall(tensors, {}, kRules);
  CHECK(report.text.size() < 3000);
  CHECK(report.summary.size() < 2048);
  CHECK(has(report.text, "and 491 more"));
}

}  // namespace khorovod::testing

TEST_MAIN()
