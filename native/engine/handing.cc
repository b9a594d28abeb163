#include "engine/handing.h"

#include <chrono>
#include <utility>

namespace khorovod {

void Handing::open() { open_.store(true, std::memory_order_release); }

std::optional<HandedWork> Handing::next(Nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(timeout),
                    [this] { return closed_ || !works_.empty(); });
  if (closed_ || works_.empty()) return std::nullopt;
  HandedWork work = std::move(works_.front());
  works_.pop_front();
  return work;
}

bool Handing::finish(std::uint64_t work, std::string error) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  results_.push_back({work, std::move(error)});
  any_results_.store(true, std::memory_order_release);
  return true;
}

bool Handing::wait_until_closed(Nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(timeout), [this] { return closed_; });
}

void Handing::put(HandedWork work) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    works_.push_back(std::move(work));
  }
  changed_.notify_all();
}

bool Handing::take_results(std::vector<HandedResult>& results) {
  // Asked for in every step: not worth a lock.
  if (!any_results_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  any_results_.store(false, std::memory_order_relaxed);
  results.swap(results_);
  results_.clear();
  return !results.empty();
}

void Handing::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    works_.clear();
    results_.clear();
  }
  changed_.notify_all();
}

}  // namespace khorovod
