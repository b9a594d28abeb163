// Ranks that wait for others for too long: when that is worth a word, and what is said. Pure: it
// is told the time and what everybody knows, and asks nobody.
//
// A rank that has waited past the limit *complains* to the coordinator, which asks the ranks that
// are missing (and one that waits) for an *account* of themselves, and reports to all that wait.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/wire.h"

namespace khorovod {

struct StallRules {
  Nanoseconds warn = 0;      // 0: never
  Nanoseconds shutdown = 0;  // the world ends after this long; 0: never
};

enum class StallVerdict { kFine, kWarn, kEnd };

// When a rank complains: at the first limit, again every time as much has passed, and for good at
// the second.
class StallClock {
 public:
  explicit StallClock(StallRules rules) : rules_(rules) {}

  // `since`: when the oldest of the waits began; 0 if there is none.
  StallVerdict look(Nanoseconds since, Nanoseconds now);
  // How often it is worth looking.
  Nanoseconds interval() const;

 private:
  const StallRules rules_;
  Nanoseconds warned_ = 0;
  Nanoseconds ended_ = 0;
};

// An operation that has waited past the limit on some rank.
struct Complaint {
  std::uint32_t set = 0;
  std::string name;
  Nanoseconds waited = 0;
};

// What a rank tells the coordinator because of a stall.
struct Complaints {
  bool final = false;  // the second limit has passed
  std::vector<Complaint> items;
};
void write_complaints(Writer& out, const Complaints& complaints);
bool read_complaints(Reader& in, Complaints& complaints);

// What a rank says of itself.
struct Account {
  std::string place;                 // where its program stands: a line, and lines with its stack
  std::vector<std::string> pending;  // operations that it waits for
  std::vector<std::string> done;     // its last operations, the latest first
};
void write_account(Writer& out, const Account& account);
bool read_account(Reader& in, Account& account);

// An operation that some ranks wait for and others have not submitted.
struct StalledTensor {
  std::string label;
  Nanoseconds waited = 0;
  std::vector<int> waiting;
  std::vector<int> missing;
};

// What is known of a rank that matters in a report.
struct StalledRank {
  std::string name;  // "rank 2 (host a, pid 7)"
  int pid = 0;
  bool answered = false;
  Account account{};
  char state = '?';  // of its process, as /proc has it
};

struct StallReport {
  std::string summary;  // for every rank that waits: whom for, and where that one stands
  std::string text;     // all that is known
};

// `ranks` has the missing ones and at least one that waits.
StallReport report_stall(const std::vector<StalledTensor>& tensors,
                         const std::map<int, StalledRank>& ranks, StallRules rules);

// "is stopped (...)", from a process state; "" if that explains nothing.
std::string explain_state(char state, int pid);

// "'a', 'b' and 3 more"
std::string quoted_list(const std::vector<std::string>& names, std::size_t most);

// "61 s"
std::string seconds_text(Nanoseconds time);

}  // namespace khorovod
