// The timeline's file: what it says, that it is JSON at all times, and what spoils nothing.
#include "engine/timeline.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "tests/check.h"

namespace khorovod::testing {

namespace {

// Whether a text is JSON: the grammar, and UTF-8 left alone.
class JsonChecker {
 public:
  explicit JsonChecker(std::string_view text) : rest_(text) {}
  bool check() { return value() && (space(), rest_.empty()); }

 private:
  void space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n\r\t"), rest_.size())); }
  bool eat(std::string_view token) {
    space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  bool value() {
    if (eat("[")) return list("]", [this] { return value(); });
    if (eat("{")) return list("}", [this] { return string() && eat(":") && value(); });
    return string() || number() || eat("true") || eat("false") || eat("null");
  }
  template <typename Item>
  bool list(std::string_view end, Item item) {
    if (eat(end)) return true;
    do {
      if (!item()) return false;
    } while (eat(","));
    return eat(end);
  }
  bool string() {
    if (!eat("\"")) return false;
    while (!rest_.empty() && rest_[0] != '"') {
      if (static_cast<unsigned char>(rest_[0]) < 0x20) return false;
      if (rest_[0] == '\\') {
        const bool is_code = rest_.size() > 6 && rest_[1] == 'u';
        if (is_code && rest_.substr(2, 4).find_first_not_of("0123456789abcdef") != rest_.npos) {
          return false;
        }
        if (!is_code && (rest_.size() < 2 || (rest_[1] != '"' && rest_[1] != '\\'))) return false;
        rest_.remove_prefix(is_code ? 6 : 2);
      } else {
        rest_.remove_prefix(1);
      }
    }
    return eat("\"");
  }
  bool number() {
    space();
    const auto length = std::min(rest_.find_first_not_of("0123456789."), rest_.size());
    rest_.remove_prefix(length);
    return length > 0;
  }

  std::string_view rest_;
};

// A path of its own for a test, in a directory that goes with the process.
std::string fresh_path() {
  struct Directory {
    std::string path = (std::filesystem::temp_directory_path() / "timeline_XXXXXX").string();
    Directory() { CHECK(::mkdtemp(path.data()) != nullptr); }
    ~Directory() { std::filesystem::remove_all(path); }
  };
  static const Directory directory;
  static int count = 0;
  return directory.path + "/" + std::to_string(++count) + ".json";
}

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The lines of a file that is JSON: the events, without their commas.
std::vector<std::string> events_in(const std::string& text) {
  CHECK(JsonChecker(text).check());
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    line.resize(line.find_last_not_of(" ,]") + 1);
    if (line.starts_with('{')) lines.push_back(line);
  }
  return lines;
}

// The events of records as rank and trace, time 0 being 1000 s.
constexpr Nanoseconds kStart = 1000 * kSecond;
std::vector<std::string> events_of(const std::vector<std::pair<int, Trace>>& records,
                                   bool mark_cycles = false) {
  ChromeTrace trace(kStart, 77, mark_cycles);
  for (const auto& [rank, record] : records) CHECK(trace.add(rank, record));
  auto events = events_in(trace.text() + "\n]");
  CHECK_EQ(events[0], R"({"ph":"M","pid":0,"tid":0,"name":"start_time",)"
                      R"("args":{"start_time_since_epoch_in_micros":77}})");
  events.erase(events.begin());
  return events;
}

void check_events(const std::vector<std::string>& found, const std::vector<std::string>& expected) {
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    CHECK_EQ(found[i], expected[i]);
  }
  CHECK_EQ(found.size(), expected.size());
}

OperationTrace operation(const std::string& name = "x") {
  OperationTrace trace;
  trace.name = name;
  trace.operation = "ALLREDUCE";
  trace.activity = "SHM_ALLREDUCE";
  trace.dtype = "float32";
  trace.shape = {2, 3};
  trace.submitted = kStart + 1'000;
  trace.planned = kStart + 3'500;
  trace.started = kStart + 5'000;
  trace.done = kStart + 9'001;
  return trace;
}

ReadyTrace ready(const std::string& name = "x") {
  return {name, "ALLREDUCE", {{1, kStart + 3'000}, {0, kStart + 2'000}}};
}

std::vector<std::byte> records_of(const std::vector<Trace>& traces) {
  Writer out;
  for (const Trace& trace : traces) write_trace(out, trace);
  return {out.view().begin(), out.view().end()};
}

std::unique_ptr<Timeline> opened(const std::string& path, bool mark_cycles = false) {
  std::unique_ptr<Timeline> timeline;
  const Status status = Timeline::open(path, mark_cycles, timeline);
  CHECK_EQ(status.message, "");
  return timeline;
}

template <typename Condition>
void until(Condition condition) {
  const Nanoseconds deadline = now_ns() + kHangNs;
  while (!condition()) {
    CHECK(now_ns() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

const std::vector<std::string> kNamesOfX = {
    R"({"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"x"}})",
    R"({"ph":"M","pid":1,"tid":0,"name":"process_sort_index","args":{"sort_index":1}})",
};

std::vector<std::string> after_names(std::vector<std::string> events) {
  std::vector<std::string> all = kNamesOfX;
  all.insert(all.end(), events.begin(), events.end());
  return all;
}

}  // namespace

TEST(records_survive_the_wire) {
  OperationTrace odd = operation(std::string("a\0\xff\"", 4));
  odd.failed = true;
  odd.shape = {};
  odd.planned = 0;
  const std::vector<Trace> traces = {operation(),  ready(),      CycleTrace{5},   odd,
                                     ReadyTrace{}, CycleTrace{}, OperationTrace{}};
  const auto bytes = records_of(traces);
  Reader in(bytes);
  for (const Trace& expected : traces) {
    Trace found;
    CHECK(read_trace(in, found));
    CHECK(found == expected);
  }
  CHECK(in.done());
}

TEST(half_a_record_is_none) {
  for (const Trace& trace : {Trace(operation()), Trace(ready()), Trace(CycleTrace{300})}) {
    const auto bytes = records_of({trace});
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      Reader in(Bytes(bytes).first(size));
      Trace found;
      CHECK(!read_trace(in, found));
    }
  }
}

TEST(garbage_is_refused_or_harmless) {
  std::mt19937 random(7);
  ChromeTrace drawn(kStart, 0, true);
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = records_of({operation(), ready(), CycleTrace{kStart}});
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    Reader in(bytes);
    Trace trace;
    while (!in.done() && read_trace(in, trace)) CHECK(drawn.add(0, trace));
  }
  events_in(drawn.text() + "\n]");
}

TEST(negative_numbers_and_ranks_are_refused) {
  OperationTrace trace = operation();
  trace.shape = {-1};
  ReadyTrace negative = ready();
  negative.ranks[0].first = -1;
  for (const Trace& wrong : {Trace(trace), Trace(negative), Trace(CycleTrace{-1})}) {
    const auto bytes = records_of({wrong});
    Reader in(bytes);
    Trace found;
    CHECK(!read_trace(in, found));
  }
  ChromeTrace drawn(kStart, 0, true);
  CHECK(!drawn.add(-1, operation()));
  CHECK(!drawn.add(1 << 30, operation()));
}

TEST(negotiation_is_drawn_by_the_coordinator) {
  check_events(events_of({{0, ready()}}),
               after_names({
                   R"({"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"rank 0"}})",
                   R"({"ph":"B","pid":1,"tid":0,"ts":2.000,"name":"NEGOTIATE_ALLREDUCE"})",
                   R"({"ph":"X","pid":1,"tid":0,"ts":2.000,"dur":0,"name":"0"})",
                   R"({"ph":"X","pid":1,"tid":0,"ts":3.000,"dur":0,"name":"1"})",
                   R"({"ph":"E","pid":1,"tid":0,"ts":3.000})",
               }));
}

TEST(operation_of_rank_0) {
  check_events(
      events_of({{0, operation()}}),
      after_names({
          R"({"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"rank 0"}})",
          R"({"ph":"B","pid":1,"tid":0,"ts":3.500,"name":"ALLREDUCE"})",
          R"({"ph":"B","pid":1,"tid":0,"ts":3.500,"name":"QUEUE"})",
          R"({"ph":"E","pid":1,"tid":0,"ts":5.000})",
          R"({"ph":"B","pid":1,"tid":0,"ts":5.000,"name":"SHM_ALLREDUCE"})",
          R"({"ph":"E","pid":1,"tid":0,"ts":9.001})",
          R"({"ph":"E","pid":1,"tid":0,"ts":9.001,"args":{"dtype":"float32","shape":"[2, 3]"}})",
      }));
}

TEST(operation_of_another_rank_shows_its_own_negotiation) {
  OperationTrace trace = operation();
  trace.started = trace.planned;
  trace.shape = {};
  check_events(
      events_of({{2, trace}}),
      after_names({
          R"({"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"rank 2"}})",
          R"({"ph":"B","pid":1,"tid":2,"ts":1.000,"name":"NEGOTIATE_ALLREDUCE"})",
          R"({"ph":"E","pid":1,"tid":2,"ts":3.500})",
          R"({"ph":"B","pid":1,"tid":2,"ts":3.500,"name":"ALLREDUCE"})",
          R"({"ph":"B","pid":1,"tid":2,"ts":3.500,"name":"SHM_ALLREDUCE"})",
          R"({"ph":"E","pid":1,"tid":2,"ts":9.001})",
          R"({"ph":"E","pid":1,"tid":2,"ts":9.001,"args":{"dtype":"float32","shape":"[]"}})",
      }));
}

TEST(operation_that_failed_before_it_was_planned) {
  OperationTrace trace = operation();
  trace.planned = trace.started = 0;
  trace.failed = true;
  const auto events = events_of({{0, trace}});
  CHECK_EQ(events.size(), 5u);
  CHECK_EQ(events[3], R"({"ph":"B","pid":1,"tid":0,"ts":1.000,"name":"NEGOTIATE_ALLREDUCE"})");
  CHECK_EQ(events[4], R"({"ph":"E","pid":1,"tid":0,"ts":9.001,)"
                      R"("args":{"dtype":"float32","shape":"[2, 3]","error":true}})");
}

TEST(rows_never_go_back_in_time) {
  OperationTrace early = operation();
  early.submitted = early.planned = kStart - 5 * kSecond;
  early.started = kStart - kSecond;
  ReadyTrace overlapping = ready();
  overlapping.ranks = {{0, kStart + 20'000}, {1, kStart + 8'000}};
  OperationTrace odd = operation();  // ends before it begins
  odd.done = 1;
  const auto events = events_of({{0, early}, {0, overlapping}, {0, odd}});
  const std::vector<std::string> times = {
      "0.000",  "0.000",  "0.000",  "0.000",  "9.001",  "9.001",  "9.001",  "9.001",
      "20.000", "20.000", "20.000", "20.000", "20.000", "20.000", "20.000", "20.000"};
  CHECK_EQ(events.size(), times.size() + 3);
  for (std::size_t i = 0; i < times.size(); ++i) {
    CHECK(events[i + 3].find("\"ts\":" + times[i]) != std::string::npos);
  }
}

TEST(cycles_are_marked_on_demand) {
  const std::vector<std::pair<int, Trace>> records = {{0, CycleTrace{kStart + 12'345'678}},
                                                      {0, CycleTrace{1}}};
  CHECK(events_of(records).empty());
  const auto events = events_of(records, true);
  CHECK_EQ(events.size(), 4u);
  CHECK_EQ(events[2], R"({"ph":"i","pid":1,"tid":0,"ts":12345.678,"name":"CYCLE_START","s":"g"})");
  CHECK(events[3].find(R"("ts":0.000)") != std::string::npos);
}

TEST(names_are_escaped) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"a/b:0", "a/b:0"},
      {"\"\\\n\x7f", R"(\"\\\u000a)"
                     "\\u007f"},
      {std::string("\0", 1), R"(\u0000)"},
      {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
       "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
      {"\xff\xc3", R"(\ufffd\ufffd)"},
      {"\xc0\x80", R"(\ufffd\ufffd)"},                        // too long a form
      {"\xed\xa0\x80", R"(\ufffd\ufffd\ufffd)"},              // a surrogate
      {"\xf4\x90\x80\x80.", R"(\ufffd\ufffd\ufffd\ufffd.)"},  // beyond Unicode
      {"\xe2\x82", R"(\ufffd\ufffd)"},                        // cut
  };
  for (const auto& [name, escaped] : names) {
    CHECK_EQ(
        events_of({{0, operation(name)}})[0],
        R"({"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":")" + escaped + "\"}}");
  }
}

TEST(file_is_closed_after_each_flush) {
  const std::string path = fresh_path();
  const auto timeline = opened(path);
  CHECK_EQ(events_in(content(path)).size(), 1u);
  for (int round = 1; round <= 5; ++round) {
    timeline->add(0, records_of({operation("x" + std::to_string(round))}));
    until(
        [&] { return count_of(content(path), "process_name") == static_cast<std::size_t>(round); });
    // One write is not one moment for a reader.
    until([&] { return JsonChecker(content(path)).check(); });
    CHECK_EQ(events_in(content(path)).size(), 1u + 9u * static_cast<std::size_t>(round));
  }
}

TEST(close_writes_what_was_added_and_may_be_repeated) {
  const std::string path = fresh_path();
  const auto timeline = opened(path, true);
  for (int i = 0; i < 1000; ++i) timeline->add(0, records_of({CycleTrace{now_ns()}, operation()}));
  timeline->close();
  timeline->close();
  const std::string text = content(path);
  CHECK_EQ(count_of(text, "CYCLE_START"), 1000u);
  CHECK_EQ(events_in(text).size(), 1u + 2 + 3 + 1000 * 7u);
  CHECK_EQ(timeline->dropped(), 0u);
  timeline->add(0, records_of({operation()}));
  CHECK_EQ(timeline->dropped(), 1u);
  CHECK(content(path) == text);
}

TEST(another_file_and_the_same_again) {
  const std::string path = fresh_path();
  const std::string other = fresh_path();
  opened(path)->add(0, records_of({operation("first, which has a rather long name")}));
  opened(other)->add(0, records_of({operation("second")}));
  CHECK_EQ(count_of(content(path), "first"), 1u);
  CHECK_EQ(count_of(content(other), "first"), 0u);
  CHECK_EQ(count_of(content(other), "second"), 1u);
  opened(path);
  CHECK_EQ(events_in(content(path)).size(), 1u);
}

TEST(unwritable_paths_are_named) {
  const std::string file = fresh_path();
  const std::string fifo = fresh_path();
  std::ofstream(file).put('x');
  CHECK_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::vector<std::pair<std::string, std::string>> paths = {
      {"/nowhere/at/all.json", "No such file or directory"},
      {"/tmp", "Is a directory"},
      {file + "/x", "Not a directory"},
      {"", "No such file or directory"},
      {"/dev/full", "No space left on device"},
      {fifo, "No such device or address"},
  };
  for (const auto& [path, why] : paths) {
    std::unique_ptr<Timeline> timeline;
    const Status status = Timeline::open(path, false, timeline);
    CHECK_EQ(status.message, "Cannot write a timeline to '" + path + "': " + why + ".");
    CHECK(status.code == Code::kInvalid);
    CHECK(timeline == nullptr);
  }
}

TEST(garbage_is_dropped_and_counted) {
  const std::string path = fresh_path();
  const auto timeline = opened(path);
  auto broken = records_of({operation("before"), operation("broken")});
  broken.resize(broken.size() - 1);
  timeline->add(0, broken);
  timeline->add(1, {std::byte{200}, std::byte{1}});
  timeline->add(-1, records_of({operation("nobody's")}));
  timeline->add(0, {});
  timeline->add(0, records_of({operation("after")}));
  timeline->close();
  CHECK_EQ(timeline->dropped(), 3u);
  CHECK(timeline->failure().ok());
  const std::string text = content(path);
  events_in(text);
  CHECK_EQ(count_of(text, "process_name"), 2u);
  CHECK_EQ(count_of(text, "before") + count_of(text, "after"), 2u);
}

TEST(full_disk_ends_the_timeline_and_nothing_else) {
  const std::string path = fresh_path();
  rlimit before;
  CHECK_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1'000'000, before.rlim_max};
  const auto timeline = opened(path);
  CHECK_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  timeline->add(0, records_of(std::vector<Trace>(100, operation())));
  until([&] { return count_of(content(path), "\"ph\"") > 500; });
  until([&] {
    timeline->add(0, records_of(std::vector<Trace>(100, operation())));
    return !timeline->failure().ok();
  });
  CHECK_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  CHECK_EQ(timeline->failure().message,
           "Cannot write a timeline to '" + path + "': File too large.");
  const auto dropped = timeline->dropped();
  CHECK(dropped > 0);
  timeline->add(0, records_of({operation()}));
  CHECK_EQ(timeline->dropped(), dropped + 1);
  timeline->close();
  CHECK(events_in(content(path)).size() > 500);
}

TEST(threads_add_and_one_closes) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  const std::string path = fresh_path();
  const auto timeline = opened(path);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kThreads; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < kEach; ++i) {
        timeline->add(rank, records_of({operation("x" + std::to_string(i % 10))}));
      }
      if (rank == 0) until([&] { return count_of(content(path), "rank 1") > 0; });
    });
  }
  for (auto& thread : threads) thread.join();
  std::thread closer([&] { timeline->close(); });
  timeline->close();
  closer.join();
  CHECK_EQ(timeline->dropped(), 0u);
  const std::string text = content(path);
  events_in(text);
  CHECK_EQ(count_of(text, "\"name\":\"ALLREDUCE\""), std::size_t{kThreads * kEach});
  CHECK_EQ(count_of(text, "thread_name"), kThreads * 10u);
}

TEST(many_events_and_what_they_cost) {
  // For the eye: well under a microsecond each.
  constexpr int kRecords = 50'000;
  const auto timeline = opened(fresh_path());
  std::vector<Trace> traces;
  for (int i = 0; i < 500; ++i) traces.emplace_back(operation("layer." + std::to_string(i)));
  const auto records = records_of(traces);
  const Nanoseconds begin = now_ns();
  for (int i = 0; i < kRecords / 500; ++i) timeline->add(0, records);
  const Nanoseconds added = now_ns();
  timeline->close();
  const Nanoseconds closed = now_ns();
  std::printf("  %.0f ns to add a delivery of 500 operations, %.0f ns to write an event\n",
              static_cast<double>(added - begin) / (kRecords / 500),
              static_cast<double>(closed - begin) / (kRecords * 6.0));
  CHECK_EQ(timeline->dropped(), 0u);
}

}  // namespace khorovod::testing

TEST_MAIN()
