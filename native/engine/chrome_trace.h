// Trace records as events of Chrome's trace format, in JSON. Knows neither files nor threads.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/trace.h"

namespace khorovod {

// Each tensor is a "process", each rank a "thread" of it. Within such a row events never go back in
// time and begins and ends nest: what would overlap is clipped, so records of a rank must be added
// in the order in which they ended, and a ReadyTrace before rank 0's operation.
class ChromeTrace {
 public:
  // `start` on the monotonic clock is time 0, `epoch_us` the same moment for people.
  ChromeTrace(Nanoseconds start, std::int64_t epoch_us, bool mark_cycles);

  // Appends the events of a record to text(). False if a rank cannot be one.
  bool add(int rank, const Trace& trace);

  // What the caller has not yet taken away: the array's beginning, then events with a comma before
  // each. Behind all of it only the "]" is missing.
  std::string& text() { return text_; }

 private:
  // A row of the picture: a tensor on a rank.
  struct Row {
    std::string place;     // what its events say of that; empty: the row is new
    Nanoseconds last = 0;  // when its last event was
  };
  struct Tensor {
    int pid = 0;
    std::vector<Row> rows;  // by rank
  };

  void add_operation(int rank, const OperationTrace& trace);
  void add_ready(const ReadyTrace& trace);
  void add_cycle(const CycleTrace& trace);

  Tensor& tensor(const std::string& name);
  Row& row(Tensor& tensor, int rank);
  void name_process(int pid, std::string_view name);

  void begin(Row& row, Nanoseconds at, std::string_view prefix, std::string_view name);
  void end(Row& row, Nanoseconds at);
  void end_operation(Row& row, Nanoseconds at, const OperationTrace& trace);

  void open_event(char phase, std::string_view place);
  void put_time(Row& row, Nanoseconds at, std::string_view next);
  void put_time(Nanoseconds since_start, std::string_view next);
  void put(std::string_view text) { text_ += text; }
  void put_number(std::int64_t number);
  void put_escaped(std::string_view text);

  const Nanoseconds start_;
  const bool mark_cycles_;
  std::unordered_map<std::string, Tensor> tensors_;
  int processes_ = 0;
  int cycles_pid_ = 0;           // 0: none yet
  Nanoseconds put_last_ = -1;    // the time put last,
  std::string last_time_ = "0";  // and its text
  std::string text_;
};

}  // namespace khorovod
