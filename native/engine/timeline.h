// The timeline of a job: a file that Perfetto and chrome://tracing show, written on rank 0 by a
// thread of its own, so that neither the driver nor Python waits for a disk.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/chrome_trace.h"
#include "engine/trace_file.h"

namespace khorovod {

class Timeline {
 public:
  // Creates the file, or empties it. An error names the path and what is wrong with it.
  static Status open(const std::string& path, bool mark_cycles, std::unique_ptr<Timeline>& out);
  ~Timeline() { close(); }

  // Takes records of a rank, written one after another by write_trace. From any thread; cheap: it
  // wakes the writer at most some 20 times a second.
  void add(int rank, std::vector<std::byte> records);
  // Writes what was added and ends. What is added afterwards is dropped.
  void close();

  // How often something was lost: records that make no sense, or that came after close(), after a
  // failure or faster than the disk took them. One delivery counts once.
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // Why nothing is written any more; ok while all is well.
  Status failure() const;

 private:
  using Delivery = std::pair<int, std::vector<std::byte>>;

  Timeline(std::string path, UniqueFd file, bool mark_cycles);

  void run();
  Delivery take_first();  // with mutex_ held, or after the writer has ended
  void write(const Delivery& delivery);
  void write_events();  // of one record: they come into the file together
  void flush();
  void check(int error);  // after an error nothing more is written, and what waits is dropped

  const std::string path_;
  std::thread thread_;   // joined under closing_
  std::mutex closing_;   // one close() at a time; taken before mutex_
  TraceFile file_;       // the writer's, once it runs
  ChromeTrace trace_;    // the writer's, once it runs
  bool broken_ = false;  // the writer's

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Delivery> queue_;      // guarded by mutex_
  std::size_t queued_bytes_ = 0;    // guarded by mutex_
  bool waiting_for_first_ = false;  // guarded by mutex_: the writer sleeps until there is something
  bool stopping_ = false;           // guarded by mutex_
  Status failure_;                  // guarded by mutex_
  std::atomic<std::uint64_t> dropped_ = 0;
};

}  // namespace khorovod
