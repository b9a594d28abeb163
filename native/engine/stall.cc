#include "engine/stall.h"

#include <algorithm>
#include <cstdio>
#include <set>

namespace khorovod {

namespace {

constexpr Nanoseconds kShortestInterval = 10 * kMillisecond;
constexpr Nanoseconds kLongestInterval = kSecond;

// What a report names at most; jobs may have thousands of tensors and ranks.
constexpr std::size_t kNamedTensors = 6;
constexpr std::size_t kNamedRanks = 8;

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamedRanks); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kNamedRanks) text += ", ... (" + std::to_string(ranks.size()) + " in all)";
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string indented(const std::string& lines, const char* by) {
  std::string text;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    text += by + lines.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return text;
}

// Where a rank stands, in one line.
std::string whereabouts(const StalledRank& rank) {
  if (rank.answered) {
    return rank.account.place.empty() ? "is alive" : "is at " + first_line(rank.account.place);
  }
  const std::string state = explain_state(rank.state, rank.pid);
  return state.empty() ? "does not answer" : state;
}

std::string details(const StalledRank& rank) {
  std::string text = "  " + rank.name + " " + whereabouts(rank) + "\n";
  if (!rank.answered) return text;
  const std::size_t second = rank.account.place.find('\n');
  if (second != std::string::npos) {
    text += indented(rank.account.place.substr(second + 1), "      at ");
  }
  if (!rank.account.pending.empty()) {
    text += "    waits for " + quoted_list(rank.account.pending, kNamedTensors) + "\n";
  }
  text += rank.account.done.empty() ? "    has completed no operation yet\n"
                                    : "    has completed, the latest first: " +
                                          quoted_list(rank.account.done, kNamedTensors) + "\n";
  return text;
}

void write_names(Writer& out, const std::vector<std::string>& names) {
  out.varint(names.size());
  for (const std::string& name : names) out.string(name);
}

void read_names(Reader& in, std::vector<std::string>& names) {
  names.resize(in.count());
  for (std::string& name : names) name = in.string();
}

std::string what_follows(StallRules rules) {
  if (rules.shutdown > 0) {
    return "  The job ends after " + seconds_text(rules.shutdown) +
           " of this (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS).";
  }
  return "  All ranks must submit the same operations. To end a job that stalls, set "
         "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.";
}

}  // namespace

StallVerdict StallClock::look(Nanoseconds since, Nanoseconds now) {
  if (since == 0 || rules_.warn == 0) return StallVerdict::kFine;
  const Nanoseconds waited = now - since;
  if (rules_.shutdown > 0 && waited >= rules_.shutdown) {
    if (now - ended_ < kSecond) return StallVerdict::kFine;  // said, and on its way
    ended_ = now;
    return StallVerdict::kEnd;
  }
  if (waited < rules_.warn || (warned_ != 0 && now - warned_ < rules_.warn)) {
    return StallVerdict::kFine;
  }
  warned_ = now;
  return StallVerdict::kWarn;
}

Nanoseconds StallClock::interval() const {
  return std::clamp(rules_.warn / 10, kShortestInterval, kLongestInterval);
}

void write_complaints(Writer& out, const Complaints& complaints) {
  out.u8(complaints.final ? 1 : 0);
  out.varint(complaints.items.size());
  for (const Complaint& item : complaints.items) {
    out.varint(item.set);
    out.string(item.name);
    out.varint(static_cast<std::uint64_t>(item.waited));
  }
}

bool read_complaints(Reader& in, Complaints& complaints) {
  complaints.final = in.u8() != 0;
  complaints.items.resize(in.count());
  for (Complaint& item : complaints.items) {
    const std::uint64_t set = in.varint();
    if (set > UINT32_MAX) return false;
    item.set = static_cast<std::uint32_t>(set);
    item.name = in.string();
    const std::uint64_t waited = in.varint();
    if (waited > INT64_MAX) return false;
    item.waited = static_cast<Nanoseconds>(waited);
  }
  return in.ok();
}

void write_account(Writer& out, const Account& account) {
  out.string(account.place);
  write_names(out, account.pending);
  write_names(out, account.done);
}

bool read_account(Reader& in, Account& account) {
  account.place = in.string();
  read_names(in, account.pending);
  read_names(in, account.done);
  return in.ok();
}

std::string explain_state(char state, int pid) {
  switch (state) {
    case 'T':
      return "is stopped (by SIGSTOP or SIGTSTP; `kill -CONT " + std::to_string(pid) +
             "` lets it go on)";
    case 't':
      return "is stopped by a debugger";
    case 'D':
      return "hangs in the kernel (state D: a disk or a network file system that does not answer)";
    case 'R':
    case 'S':
      return "does not answer: native code holds its Python interpreter (process state " +
             std::string(1, state) + "; `py-spy dump --native --pid " + std::to_string(pid) +
             "` shows where)";
    default:
      return "";
  }
}

std::string quoted_list(const std::vector<std::string>& names, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

std::string seconds_text(Nanoseconds time) {
  char text[32];
  const double seconds = static_cast<double>(time) / static_cast<double>(kSecond);
  std::snprintf(text, sizeof text, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  return text;
}

StallReport report_stall(const std::vector<StalledTensor>& tensors,
                         const std::map<int, StalledRank>& ranks, StallRules rules) {
  Nanoseconds longest = 0;
  std::map<int, std::vector<std::string>> missing_by_rank;
  std::set<int> waiting;
  for (const StalledTensor& tensor : tensors) {
    longest = std::max(longest, tensor.waited);
    for (const int rank : tensor.missing) missing_by_rank[rank].push_back(tensor.label);
    waiting.insert(tensor.waiting.begin(), tensor.waiting.end());
  }
  StallReport report;
  report.text = "stalled for " + seconds_text(longest) + ": " + std::to_string(tensors.size()) +
                (tensors.size() == 1 ? " operation waits" : " operations wait") +
                " for ranks that have not submitted " + (tensors.size() == 1 ? "it" : "them") +
                "\n";
  std::size_t told = 0;
  for (const auto& [rank, labels] : missing_by_rank) {
    if (++told > kNamedRanks) {
      report.text += "  and " + std::to_string(missing_by_rank.size() - kNamedRanks) + " more\n";
      break;
    }
    const auto known = ranks.find(rank);
    const std::string name =
        known == ranks.end() ? "rank " + std::to_string(rank) : known->second.name;
    const std::string where = known == ranks.end() ? "was not asked" : whereabouts(known->second);
    report.summary += (report.summary.empty() ? "" : "; ") + name + " has not submitted " +
                      quoted_list(labels, kNamedTensors) + " for " + seconds_text(longest) +
                      " and " + where;
    report.text += "  " + name + " has not submitted " + quoted_list(labels, kNamedTensors) + "\n";
  }
  report.text += "  waiting: " + rank_list({waiting.begin(), waiting.end()}) + "\n";
  for (const auto& [rank, known] : ranks) report.text += details(known);
  report.text += what_follows(rules);
  return report;
}

}  // namespace khorovod
