#include "engine/completion_pool.h"

#include <string>
#include <system_error>
#include <utility>

#include "base/native_thread.h"

namespace khorovod {

namespace {
thread_local bool is_pool_thread = false;
}

bool CompletionPool::in_callback() { return is_pool_thread; }

Status CompletionPool::prepare() {
  if (prepared_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  try {
    if (threads_.empty()) start_thread();
  } catch (const std::system_error& error) {
    return Status::error(Code::kInternal,
                         std::string("Cannot start a thread for callbacks: ") + error.what() +
                             "; this process may have no more tasks (ulimit -u, pids.max)");
  }
  prepared_.store(true, std::memory_order_release);
  return {};
}

void CompletionPool::start_thread() {
  threads_.push_back(start_native_thread("khorovod-done", [this] { run(); }));
}

void CompletionPool::post(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(callback));
  if (idle_ < static_cast<int>(queue_.size()) && static_cast<int>(threads_.size()) < limit_) {
    try {
      start_thread();
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // else those that there are will do
    }
  }
  wake_.notify_one();
}

void CompletionPool::run() {
  is_pool_thread = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    const auto callback = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    callback();
    lock.lock();
  }
}

void CompletionPool::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (auto& thread : threads) thread.join();
}

}  // namespace khorovod
