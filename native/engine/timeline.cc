#include "engine/timeline.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "base/native_thread.h"

namespace khorovod {

namespace {

constexpr int kLowestPriority = 19;

// The writer looks at the queue this often, unless so much is waiting ...
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr std::size_t kHurryBytes = 4 << 20;
// ... and this is more than a disk that works would let come together.
constexpr std::size_t kMaxQueuedBytes = 64 << 20;

std::int64_t epoch_microseconds() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000 + now.tv_nsec / kMicrosecond;
}

Status cannot_write(const std::string& path, int error) {
  const std::string why =
      error == ESPIPE ? "It is not a regular file" : std::generic_category().message(error);
  return Status::error(Code::kInvalid, "Cannot write a timeline to '" + path + "': " + why + ".");
}

}  // namespace

Status Timeline::open(const std::string& path, bool mark_cycles, std::unique_ptr<Timeline>& out) {
  // O_NONBLOCK: a pipe is refused, not waited for.
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!file) return cannot_write(path, errno);
  std::unique_ptr<Timeline> timeline(new Timeline(path, std::move(file), mark_cycles));
  timeline->write_events();
  timeline->flush();
  if (const Status failure = timeline->failure(); !failure.ok()) return failure;
  timeline->thread_ =
      start_native_thread("khorovod-trace", [writer = timeline.get()] { writer->run(); });
  out = std::move(timeline);
  return {};
}

Timeline::Timeline(std::string path, UniqueFd file, bool mark_cycles)
    : path_(std::move(path)),
      file_(std::move(file)),
      trace_(now_ns(), epoch_microseconds(), mark_cycles) {}

void Timeline::add(int rank, std::vector<std::byte> records) {
  if (records.empty()) return;
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || !failure_.ok() || queued_bytes_ + records.size() > kMaxQueuedBytes) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    const std::size_t before = queued_bytes_;
    queued_bytes_ += records.size();
    queue_.emplace_back(rank, std::move(records));
    wake = std::exchange(waiting_for_first_, false) ||
           (before < kHurryBytes && queued_bytes_ >= kHurryBytes);
  }
  if (wake) wake_.notify_one();
}

void Timeline::close() {
  const std::lock_guard closing(closing_);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (!thread_.joinable()) return;
  thread_.join();
  while (!queue_.empty()) write(take_first());
  flush();
  if (!broken_) file_.finish();
}

Status Timeline::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Timeline::run() {
  // What is written later does no harm; a rank that waits for a core does.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowestPriority);
  std::unique_lock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !stopping_) {
      waiting_for_first_ = true;
      wake_.wait(lock);
    }
    waiting_for_first_ = false;
    while (!queue_.empty() && !stopping_) {
      const Delivery delivery = take_first();
      lock.unlock();
      write(delivery);
      lock.lock();
    }
    if (stopping_) return;  // close() does the rest, at its own priority
    lock.unlock();
    flush();
    lock.lock();
    wake_.wait_for(lock, kPause, [this] { return stopping_ || queued_bytes_ >= kHurryBytes; });
  }
}

Timeline::Delivery Timeline::take_first() {
  Delivery first = std::move(queue_.front());
  queue_.pop_front();
  queued_bytes_ -= first.second.size();
  return first;
}

void Timeline::write(const Delivery& delivery) {
  Reader in(delivery.second);
  Trace trace;
  while (!in.done()) {
    // After bytes that make no sense nobody knows where the next record begins.
    if (!read_trace(in, trace) || !trace_.add(delivery.first, trace)) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    write_events();
    if (broken_) return;
  }
}

void Timeline::flush() {
  if (!broken_) check(file_.flush());
}

void Timeline::write_events() {
  if (!broken_) check(file_.append(trace_.text()));
  trace_.text().clear();
}

void Timeline::check(int error) {
  if (error == 0) return;
  broken_ = true;
  file_.finish();
  const std::lock_guard lock(mutex_);
  failure_ = cannot_write(path_, error);
  dropped_.fetch_add(1 + queue_.size(), std::memory_order_relaxed);  // with what was in hand
  queue_.clear();
  queued_bytes_ = 0;
}

}  // namespace khorovod
