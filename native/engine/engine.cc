#include "engine/engine.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "base/native_thread.h"
#include "base/process.h"
#include "shm/doorbell.h"
#include "shm/futex.h"

namespace khorovod {

namespace {

// A submission that nobody waits for wakes the engine thread when this much has gathered, or after
// some time: one wake-up per gradient would cost more than the gradients.
constexpr std::size_t kLazyBytes = std::size_t{256} << 10;
constexpr std::size_t kLazyCount = 512;

// A sleeping driver looks up this often, at first and at most, whatever it hears.
constexpr Nanoseconds kFirstSlice = kMillisecond;
constexpr Nanoseconds kLongestSlice = 50 * kMillisecond;

// Traces travel to rank 0 when this much has gathered, or after this time.
constexpr std::size_t kTraceBytes = std::size_t{16} << 10;
constexpr Nanoseconds kTraceTime = 100 * kMillisecond;

}  // namespace

Engine::Engine(World world, EngineOptions options, Observer observer)
    : world_(std::move(world)),
      options_(options),
      observer_(std::move(observer)),
      everybody_(all_ranks(world_.size)) {
  sets_[0] = everybody_;
  if (world_.size == 1) return;
  for (Peer& peer : world_.peers) {
    if (peer.pidfd) peer.local_pid = pid_of(peer.pidfd.get());
  }
  if (world_.rank == 0) negotiator_ = std::make_unique<Negotiator>(world_.size, options.negotiator);
  timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_) throw std::system_error(errno, std::system_category(), "timerfd_create");
  thread_ = start_native_thread("khorovod", [this] { run_thread(); });
}

Engine::~Engine() { shutdown(); }

void Engine::abandon_in_child() {
  if (!in_forked_child()) return;
  world_.wake.reset();
  timer_.reset();
  for (Peer& peer : world_.peers) peer.pidfd.reset();
  if (world_.close_descriptors) world_.close_descriptors();
}

// ---------------------------------------------------------------------------------------------------
// Submission and waiting, from any thread

Status Engine::submit(const OperationRef& operation, bool caller_waits, Nanoseconds patience) {
  operation->submitted = now_ns();
  operation->bytes = operation->request.bytes();
  if (operation->members == nullptr) operation->members = members(operation->request.set);
  if (operation->members == nullptr || !operation->members->contains(world_.rank)) {
    return Status::error(Code::kInvalid, "Process set " + std::to_string(operation->request.set) +
                                             " is not registered, or rank " +
                                             std::to_string(world_.rank) + " is not in it");
  }
  if (operation->on_done) {
    if (Status status = pool_.prepare(); !status.ok()) return status;
  }
  bool arm_timer = false;
  bool call_thread = false;
  bool done_already = false;  // in a world of one, or one that is broken
  {
    const std::lock_guard lock(submit_mutex_);
    if (stopping_.load(std::memory_order_relaxed)) {
      return Status::error(Code::kShutdown, "this rank has shut down");
    }
    if (!failure_.ok()) {
      operation->status = failure_;
      operation->status.message += ". Not started: '" + operation->request.label() + "'";
      operation->done.store(true, std::memory_order_release);
      add(counters_.failed, 1);
    } else if (operation->members->size() == 1) {
      operation->status = run_alone(*operation);
      if (tracing_alone_.load(std::memory_order_relaxed)) trace_alone(*operation);
      add(operation->status.ok() ? counters_.completed : counters_.failed, 1);
      operation->done.store(true, std::memory_order_release);
    } else {
      const OpKey key{operation->request.set, operation->request.name};
      if (!in_flight_.emplace(key, operation).second) {
        return Status::error(
            Code::kInvalid,
            "An operation named '" + operation->request.label() +
                "' is already in flight on this rank. Give each operation a name of "
                "its own, or wait for the first one.");
      }
      queue_.push_back(operation);
      queued_bytes_ += operation->bytes;
      arm_timer = queue_.size() == 1 && !caller_waits;
      if (!caller_waits && !thread_called_ &&
          (queue_.size() >= kLazyCount || queued_bytes_ >= kLazyBytes)) {
        thread_called_ = call_thread = true;
      }
    }
    add(counters_.submitted, 1);
    done_already = operation->is_done();
  }
  if (world_.size == 1 && tracing_alone_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(progress_);
    flush_traces(false);
  }
  if (call_thread) {
    world_.link->wake_self();
  } else if (arm_timer) {
    set_timer(patience);
  }
  if (done_already && operation->on_done) {
    pool_.post([operation] { operation->on_done(operation->status); });
  }
  return {};
}

void Engine::set_timer(Nanoseconds after) const {
  const itimerspec once{{0, 0}, {after / kSecond, after % kSecond}};
  ::timerfd_settime(timer_.get(), 0, &once, nullptr);
}

void Engine::nudge() {
  if (world_.size == 1) return;
  {
    const std::lock_guard lock(submit_mutex_);
    if (queue_.empty() || thread_called_) return;
    thread_called_ = true;
  }
  world_.link->wake_self();
}

std::int64_t Engine::take_unnamed_number(std::uint32_t set) {
  const std::lock_guard lock(submit_mutex_);
  return next_unnamed_[set]++;
}

std::int64_t Engine::next_unnamed_number(std::uint32_t set) const {
  const std::lock_guard lock(submit_mutex_);
  const auto found = next_unnamed_.find(set);
  return found == next_unnamed_.end() ? 0 : found->second;
}

void Engine::skip_unnamed_numbers(std::uint32_t set, std::int64_t next) {
  const std::lock_guard lock(submit_mutex_);
  std::int64_t& own = next_unnamed_[set];
  own = std::max(own, next);
}

void Engine::restart_unnamed_numbers(std::uint32_t set) {
  const std::lock_guard lock(submit_mutex_);
  next_unnamed_.erase(set);
}

WaitResult Engine::wait(Operation& operation) {
  for (;;) {
    if (operation.is_done()) return WaitResult::kDone;
    if (!stopping_.load(std::memory_order_acquire) && progress_.try_lock()) {
      const WaitResult result = drive(operation);
      const bool thread_needed = std::exchange(thread_needed_, false);
      const bool under_way = busy();
      progress_.unlock();
      // Only now: a thread that finds the lock held goes back to sleep, as it may have done
      // already.
      if ((turned_away_.exchange(false) && under_way) || thread_needed) {
        signal_eventfd(world_.wake.get());
      }
      notify_local_waiters();
      if (result == WaitResult::kInterrupted && !operation.is_done()) return result;
    } else {
      nudge();  // the driver may be asleep and not know of this operation
      if (!wait_for_driver(operation)) return WaitResult::kInterrupted;
    }
  }
}

// Another thread drives: it rings when it completes something and when it stops driving. False if
// neither happened but a signal, or nothing for long enough to look for one.
bool Engine::wait_for_driver(const Operation& operation) {
  local_waiters_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t bell = local_bell_.load(std::memory_order_seq_cst);
  bool rung = true;
  if (!operation.is_done()) {
    if (progress_.try_lock()) {
      progress_.unlock();
    } else {
      rung = futex_wait(local_bell_, bell, kLongestSlice) == FutexResult::kWoken;
    }
  }
  local_waiters_.fetch_sub(1, std::memory_order_seq_cst);
  return rung;
}

void Engine::notify_local_waiters() {
  if (local_waiters_.load(std::memory_order_seq_cst) == 0) return;
  local_bell_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(local_bell_, INT32_MAX);
}

void Engine::shutdown(const std::string& last_words) {
  const bool records = world_.rank == 0 && tracing_alone_.load(std::memory_order_relaxed);
  if (records && !stopping_.load(std::memory_order_acquire)) stop_timeline();
  {
    const std::lock_guard lock(submit_mutex_);
    if (stopping_.exchange(true)) return;
  }
  if (world_.size > 1) {
    world_.link->wake_self();  // a driver sees stopping_ and gives up the lock
    {
      const std::lock_guard lock(progress_);
      // Plans that peers need in order to finish what this rank has finished already, and the
      // knowledge that there are no others.
      if (!broken_) tell_last_batch();
      if (!broken_ && world_.rank != 0) set_tracing(false);
      const Nanoseconds deadline = now_ns() + kSecond;
      fds_.clear();
      while (world_.link->backlog() && world_.link->failure().ok() && now_ns() < deadline) {
        const std::uint32_t mark = world_.link->mark();
        if (!world_.link->flush()) world_.link->sleep(mark, {kAllNews}, fds_, kMillisecond);
      }
      fail_everything(Status::error(Code::kShutdown,
                                    "this rank shut down while the operation was "
                                    "pending"));
      world_.link->leave(carried_out_, last_words);
    }
    notify_local_waiters();
    signal_eventfd(world_.wake.get());
    thread_.join();
  }
  handing_.close();
  pool_.stop();
  inspector_.stop();
}

// ---------------------------------------------------------------------------------------------------
// Driving

WaitResult Engine::drive(Operation& operation) {
  Nanoseconds slice = kFirstSlice;
  const Nanoseconds began = now_ns();
  for (;;) {
    const std::uint32_t mark = world_.link->mark();
    const bool moved = step();
    if (operation.is_done()) {
      if (hand_over(mark)) return WaitResult::kDone;
      continue;
    }
    if (stopping_.load(std::memory_order_acquire)) return WaitResult::kInterrupted;
    if (moved) {
      slice = kFirstSlice;
      if (now_ns() - began < kLongestSlice) continue;
      break;  // a long transfer: let the caller look for signals
    }
    if (world_.plane->polls()) {
      if (pause_polling(mark) && now_ns() - began < kLongestSlice) continue;
      break;
    }
    fds_.clear();
    world_.plane->wanted_fds(fds_);
    if (fds_.empty() && spin_for_news(mark))
      continue;  // a spinner does not see the plane's sockets
    add(counters_.sleeps, 1);
    const Wakeup wakeup = world_.link->sleep(mark, wanted_news(), fds_, slice);
    if (wakeup == Wakeup::kTimeout) slice = std::min(2 * slice, kLongestSlice);
    if (wakeup == Wakeup::kInterrupted || (wakeup == Wakeup::kTimeout && slice == kLongestSlice)) {
      break;
    }
  }
  // The caller may not come back: the engine thread takes over where this leaves off.
  world_.link->park(world_.link->mark(), wanted_news());
  thread_needed_ = true;
  return WaitResult::kInterrupted;
}

// Spinning for about as long as it takes to wake a sleeper costs at most twice the best choice,
// whatever happens: the answer to a rank that comes last is mostly there by then.
bool Engine::spin_for_news(std::uint32_t mark) {
  if (options_.spin == 0) return yield_for_news(mark);
  const Nanoseconds until = now_ns() + options_.spin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (world_.link->news_since(mark)) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (now_ns() < until);
  return false;
}

bool Engine::yield_for_news(std::uint32_t mark) {
  const Nanoseconds until = now_ns() + yield_time_.now();
  do {
    std::this_thread::yield();
    if (world_.link->news_since(mark)) {
      yield_time_.helped();
      return true;
    }
  } while (now_ns() < until);
  yield_time_.was_in_vain();
  return false;
}

// Until it is time to ask the plane again; false if a signal came.
bool Engine::pause_polling(std::uint32_t mark) {
  const Nanoseconds pause = poll_pause(now_ns() - stirred_, options_.spin);
  if (pause == 0) {
    if (options_.spin == 0) std::this_thread::yield();  // others want this core
    return true;
  }
  fds_.clear();
  add(counters_.sleeps, 1);
  return world_.link->sleep(mark, wanted_news(), fds_, pause) != Wakeup::kInterrupted;
}

// The driver goes; from here on news wakes the engine thread. False: there is some to look at
// first.
bool Engine::hand_over(std::uint32_t mark) {
  if (!world_.link->park(mark, wanted_news())) return false;
  fds_.clear();
  world_.link->wanted_fds(fds_);
  // Over sockets the engine thread stayed away from them while a caller was driving.
  if (busy() && (!fds_.empty() || world_.plane->polls())) thread_needed_ = true;
  return true;
}

// Something is under way that news could move forward.
bool Engine::busy() const { return waiting_ > 0 || world_.link->backlog(); }

Wanted Engine::wanted_news() const {
  // With nothing pending here, nothing that needs this rank can complete: let it sleep.
  if (!busy()) return {kNewsUrgent};
  Wanted wanted = world_.plane->wanted_news();
  wanted.news |= kNewsUrgent | kNewsControl;
  return wanted;
}

bool Engine::receive() {
  return world_.link->receive(
      [this](int peer, Bytes message) { return on_message(peer, message); });
}

bool Engine::advance_plane() {
  return world_.plane->advance(
      [this](std::uint64_t work, std::size_t segment) { on_segment_done(work, segment); });
}

bool Engine::step() {
  try {
    return try_step();
  } catch (const std::exception& error) {
    // No memory, no more threads: whatever was half done, this rank can go on no more. The others
    // must know, and nobody here may wait.
    reserve_.reset();
    give_up(Status::error(Code::kInternal, describe_peer(world_.rank) +
                                               " cannot go on: " + error.what() +
                                               "; give it more memory, or fewer tasks"));
    return true;
  }
}

bool Engine::try_step() {
  if (broken_) return false;
  const int departed = world_.link->departed();
  const Nanoseconds began = now_ns();
  // The coordinator books what others have said before it books what is new here: who was first.
  bool moved = world_.rank == 0 && receive();
  moved |= announce_submissions();
  if (world_.rank != 0) moved |= receive();
  moved |= decide();
  if (departed >= 0) tell_of_departures();
  if (tracing_ && (traces_.size() >= kTraceBytes || began - last_flush_ >= kTraceTime)) {
    last_flush_ = began;
    flush_traces(false);
  }
  moved |= take_handed_results();
  moved |= world_.link->flush();
  const Nanoseconds negotiated = now_ns();
  if (moved) add(counters_.negotiate_ns, static_cast<std::uint64_t>(negotiated - began));
  if (!running_.empty()) {
    const bool advanced = advance_plane();
    if (advanced) {
      last_moved_ = now_ns();
      add(counters_.move_ns, static_cast<std::uint64_t>(last_moved_ - negotiated));
    }
    moved |= advanced;
  }
  if (moved) stirred_ = now_ns();
  publish_finished();
  if (account_due_.load(std::memory_order_relaxed) && account_due_.exchange(false)) send_account();
  if (options_.stall.warn > 0 && began >= next_look_) watch(began);
  check_world(!moved, departed);
  return moved;
}

}  // namespace khorovod
