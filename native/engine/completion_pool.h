// Runs completion callbacks on threads of its own: a callback may run foreign code for as long as
// it likes, and must never do so on the thread that drives the engine. Threads start when they are
// needed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"

namespace khorovod {

class CompletionPool {
 public:
  explicit CompletionPool(int threads) : limit_(threads) {}
  ~CompletionPool() { stop(); }

  // Before the first callback is needed: that there is a thread to run it.
  Status prepare();
  void post(std::function<void()> callback);
  // Runs what was posted, then ends the threads. Nothing may be posted afterwards.
  void stop();
  // Whether the calling thread runs a callback: it must not wait for the pool.
  static bool in_callback();

 private:
  void start_thread();  // with mutex_ held; throws std::system_error
  void run();

  const int limit_;
  std::atomic<bool> prepared_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  std::vector<std::thread> threads_;         // guarded by mutex_
  int idle_ = 0;                             // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
};

}  // namespace khorovod
