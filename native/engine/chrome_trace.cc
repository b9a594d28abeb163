#include "engine/chrome_trace.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace khorovod {

namespace {

constexpr int kMaxRanks = 1 << 20;

// The length of the UTF-8 character that `text` begins with; 0 if it begins with none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than it need be, a surrogate, or beyond Unicode.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

// Whether a character stands for itself in JSON; a table, as it is asked for every one of them.
constexpr auto kPlain = [] {
  std::array<bool, 256> plain{};
  for (std::size_t c = 0x20; c < 0x7f; ++c) plain[c] = c != '"' && c != '\\';
  return plain;
}();
bool is_plain(char c) { return kPlain[static_cast<std::uint8_t>(c)]; }

std::string place_of(int pid, int tid) {
  return R"(","pid":)" + std::to_string(pid) + R"(,"tid":)" + std::to_string(tid);
}

}  // namespace

ChromeTrace::ChromeTrace(Nanoseconds start, std::int64_t epoch_us, bool mark_cycles)
    : start_(start), mark_cycles_(mark_cycles) {
  put(R"([
{"ph":"M","pid":0,"tid":0,"name":"start_time","args":{"start_time_since_epoch_in_micros":)");
  put_number(epoch_us);
  put("}}");
}

bool ChromeTrace::add(int rank, const Trace& trace) {
  if (rank < 0 || rank >= kMaxRanks) return false;
  if (const auto* operation = std::get_if<OperationTrace>(&trace)) {
    add_operation(rank, *operation);
  } else if (const auto* ready = std::get_if<ReadyTrace>(&trace)) {
    add_ready(*ready);
  } else if (mark_cycles_) {
    add_cycle(std::get<CycleTrace>(trace));
  }
  return true;
}

void ChromeTrace::add_operation(int rank, const OperationTrace& trace) {
  Row& lane = row(tensor(trace.name), rank);
  if (trace.planned == 0) {  // it failed before: rank 0 has drawn at most a part of that
    begin(lane, trace.submitted, "NEGOTIATE_", trace.operation);
    end_operation(lane, trace.done, trace);
    return;
  }
  if (rank != 0) {
    begin(lane, trace.submitted, "NEGOTIATE_", trace.operation);
    end(lane, trace.planned);
  }
  begin(lane, trace.planned, "", trace.operation);
  if (trace.started > trace.planned) {
    begin(lane, trace.planned, "", "QUEUE");
    end(lane, trace.started);
  }
  if (trace.started != 0 && !trace.activity.empty()) {
    begin(lane, trace.started, "", trace.activity);
    end(lane, trace.done);
  }
  end_operation(lane, trace.done, trace);
}

void ChromeTrace::add_ready(const ReadyTrace& trace) {
  if (trace.ranks.empty()) return;
  Row& lane = row(tensor(trace.name), 0);
  auto ranks = trace.ranks;
  std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second, a.first) < std::pair(b.second, b.first);
  });
  begin(lane, ranks.front().second, "NEGOTIATE_", trace.operation);
  for (const auto& [rank, at] : ranks) {
    open_event('X', lane.place);
    put_time(lane, at, R"(,"dur":0,"name":")");
    put_number(rank);
    put("\"}");
  }
  end(lane, ranks.back().second);
}

void ChromeTrace::add_cycle(const CycleTrace& trace) {
  if (cycles_pid_ == 0) name_process(cycles_pid_ = ++processes_, "cycles");
  open_event('i', place_of(cycles_pid_, 0));
  put_time(std::max<Nanoseconds>(0, trace.at - start_), R"(,"name":"CYCLE_START","s":"g"})");
}

ChromeTrace::Tensor& ChromeTrace::tensor(const std::string& name) {
  const auto [found, is_new] = tensors_.try_emplace(name);
  if (is_new) name_process(found->second.pid = ++processes_, name);
  return found->second;
}

ChromeTrace::Row& ChromeTrace::row(Tensor& tensor, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (tensor.rows.size() <= index) tensor.rows.resize(index + 1);
  Row& found = tensor.rows[index];
  if (found.place.empty()) {
    found.place = place_of(tensor.pid, rank);
    open_event('M', found.place);
    put(R"(,"name":"thread_name","args":{"name":"rank )");
    put_number(rank);
    put("\"}}");
  }
  return found;
}

void ChromeTrace::name_process(int pid, std::string_view name) {
  const std::string place = place_of(pid, 0);
  open_event('M', place);
  put(R"(,"name":"process_name","args":{"name":")");
  put_escaped(name);
  put("\"}}");
  open_event('M', place);
  put(R"(,"name":"process_sort_index","args":{"sort_index":)");
  put_number(pid);
  put("}}");
}

void ChromeTrace::begin(Row& row, Nanoseconds at, std::string_view prefix, std::string_view name) {
  open_event('B', row.place);
  put_time(row, at, R"(,"name":")");
  put(prefix);
  put_escaped(name);
  put("\"}");
}

void ChromeTrace::end(Row& row, Nanoseconds at) {
  open_event('E', row.place);
  put_time(row, at, "}");
}

void ChromeTrace::end_operation(Row& row, Nanoseconds at, const OperationTrace& trace) {
  open_event('E', row.place);
  put_time(row, at, R"(,"args":{"dtype":")");
  put_escaped(trace.dtype);
  put(R"(","shape":"[)");
  for (std::size_t i = 0; i < trace.shape.size(); ++i) {
    if (i > 0) put(", ");
    put_number(trace.shape[i]);
  }
  put(trace.failed ? R"(]","error":true}})" : R"(]"}})");
}

void ChromeTrace::open_event(char phase, std::string_view place) {
  put(R"(,
{"ph":")");
  text_ += phase;
  put(place);
}

void ChromeTrace::put_time(Row& row, Nanoseconds at, std::string_view next) {
  row.last = std::max(row.last, at - start_);
  put_time(row.last, next);
}

void ChromeTrace::put_time(Nanoseconds since_start, std::string_view next) {
  if (since_start != put_last_) {  // often several events at once
    put_last_ = since_start;
    char text[32];
    char* at = std::to_chars(text, text + sizeof text, since_start / kMicrosecond).ptr;
    const auto rest = static_cast<int>(since_start % kMicrosecond);
    *at++ = '.';
    for (const int digit : {rest / 100, rest / 10 % 10, rest % 10}) {
      *at++ = static_cast<char>('0' + digit);
    }
    last_time_.assign(text, at);
  }
  put(R"(,"ts":)");
  put(last_time_);
  put(next);
}

void ChromeTrace::put_number(std::int64_t number) {
  char digits[24];
  const auto result = std::to_chars(digits, digits + sizeof digits, number);
  put({digits, static_cast<std::size_t>(result.ptr - digits)});
}

void ChromeTrace::put_escaped(std::string_view text) {
  constexpr char hex[] = "0123456789abcdef";
  while (!text.empty()) {
    const auto plain = static_cast<std::size_t>(
        std::find_if_not(text.begin(), text.end(), is_plain) - text.begin());
    put(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) return;
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<std::uint8_t>(text[0]);
    if (length == 0) {
      put("\\ufffd");
    } else if (length > 1) {
      put(text.substr(0, length));
    } else if (byte == '"' || byte == '\\') {
      text_ += '\\';
      text_ += text[0];
    } else {
      put("\\u00");
      text_ += hex[byte >> 4];
      text_ += hex[byte & 15];
    }
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
}

}  // namespace khorovod
