#include "engine/engine.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cstring>

#include "base/float_environment.h"
#include "base/native_thread.h"
#include "collectives/scaling.h"
#include "shm/doorbell.h"
#include "shm/futex.h"

namespace khorovod {

namespace {

// A submission that nobody waits for wakes the engine thread when this much has gathered, or after
// this time: one wake-up per gradient would cost more than the gradients.
constexpr std::size_t kLazyBytes = std::size_t{256} << 10;
constexpr std::size_t kLazyCount = 512;
constexpr Nanoseconds kLazyTime = kMillisecond;

// Tensors this small travel with their announcement, as long as the message stays small.
constexpr std::size_t kInlineBytes = 2048;
constexpr std::size_t kInlineBudget = 8192;

// Operations complete in groups of about this size.
constexpr std::size_t kFinishBytes = std::size_t{64} << 10;

// A sleeping driver looks up this often, at first and at most, whatever it hears.
constexpr Nanoseconds kFirstSlice = kMillisecond;
constexpr Nanoseconds kLongestSlice = 50 * kMillisecond;

// After this many milliseconds the engine thread looks whether the caller that drove has gone.
constexpr int kAwayTime = 200;

void add(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

}  // namespace

Engine::Engine(World world, EngineOptions options) : world_(std::move(world)), options_(options) {
  if (world_.size == 1) return;
  if (world_.rank == 0) negotiator_ = std::make_unique<Negotiator>(world_.size, options.negotiator);
  timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
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

Status Engine::submit(const OperationRef& operation, bool caller_waits) {
  operation->submitted = now_ns();
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
      operation->status.message += ". Not started: '" + operation->request.name + "'";
      operation->done.store(true, std::memory_order_release);
      add(counters_.failed, 1);
    } else if (world_.size == 1) {
      run_alone(*operation);
    } else {
      if (!in_flight_.emplace(operation->request.name, operation).second) {
        return Status::error(
            Code::kInvalid,
            "An operation named '" + operation->request.name +
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
  if (call_thread) {
    world_.link->wake_self();
  } else if (arm_timer) {
    set_timer(kLazyTime);
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

// With one rank every reduction is the tensor itself, scaled.
void Engine::run_alone(Operation& op) {
  const Request& request = op.request;
  if (request.kind == OpKind::kAllreduce && !(prescale_of(request.prescale).identity() &&
                                              postscale_of(request.postscale, 1).identity())) {
    const FloatEnvironment ieee;
    const std::size_t count = op.bytes / dtype_size(request.dtype);
    kernels().scale(request.dtype, op.out, op.in, count, prescale_of(request.prescale));
    kernels().scale(request.dtype, op.out, op.out, count, postscale_of(request.postscale, 1));
  } else if (op.bytes > 0 && op.out != op.in) {
    std::memcpy(op.out, op.in, op.bytes);
  }
  add(counters_.completed, 1);
  op.done.store(true, std::memory_order_release);
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

void Engine::shutdown() {
  {
    const std::lock_guard lock(submit_mutex_);
    if (stopping_.exchange(true)) return;
  }
  if (world_.size > 1) {
    world_.link->wake_self();  // a driver sees stopping_ and gives up the lock
    {
      const std::lock_guard lock(progress_);
      // Plans that peers need in order to finish what this rank has finished already.
      const Nanoseconds deadline = now_ns() + kSecond;
      fds_.clear();
      while (world_.link->backlog() && world_.link->failure().ok() && now_ns() < deadline) {
        const std::uint32_t mark = world_.link->mark();
        if (!world_.link->flush()) world_.link->sleep(mark, {kAllNews}, fds_, kMillisecond);
      }
      fail_everything(Status::error(Code::kShutdown,
                                    "this rank shut down while the operation was "
                                    "pending"));
      world_.link->leave(carried_out_);
    }
    notify_local_waiters();
    signal_eventfd(world_.wake.get());
    thread_.join();
  }
  pool_.stop();
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
bool Engine::spin_for_news(std::uint32_t mark) const {
  if (options_.spin == 0) return false;
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

// The driver goes; from here on news wakes the engine thread. False: there is some to look at
// first.
bool Engine::hand_over(std::uint32_t mark) {
  if (!world_.link->park(mark, wanted_news())) return false;
  fds_.clear();
  world_.link->wanted_fds(fds_);
  // Over sockets the engine thread stayed away from them while a caller was driving.
  if (busy() && !fds_.empty()) thread_needed_ = true;
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

bool Engine::step() {
  if (broken_) return false;
  const int departed = world_.link->departed();
  const Nanoseconds began = now_ns();
  bool moved = announce_submissions();
  moved |=
      world_.link->receive([this](int peer, Bytes message) { return on_message(peer, message); });
  moved |= decide();
  moved |= world_.link->flush();
  const Nanoseconds negotiated = now_ns();
  if (moved) add(counters_.negotiate_ns, static_cast<std::uint64_t>(negotiated - began));
  if (!running_.empty()) {
    const bool advanced = world_.plane->advance(
        [this](std::uint64_t plan, std::size_t segment) { on_segment_done(plan, segment); });
    if (advanced) add(counters_.move_ns, static_cast<std::uint64_t>(now_ns() - negotiated));
    moved |= advanced;
  }
  publish_finished();
  check_world(!moved, departed);
  return moved;
}

bool Engine::announce_submissions() {
  {
    const std::lock_guard lock(submit_mutex_);
    thread_called_ = false;
    if (queue_.empty()) return false;
    draining_.swap(queue_);
    queued_bytes_ = 0;
  }
  outgoing_.clear();
  write_announcement_header(outgoing_, carried_out_);
  std::size_t inline_budget = kInlineBudget;
  std::uint64_t bytes = 0;
  for (const OperationRef& operation : draining_) {
    bytes += operation->bytes;
    announce(operation, inline_budget);
  }
  if (world_.rank != 0) world_.link->send(0, outgoing_.view());
  events_.record(
      {now_ns(), 0, 0, bytes, static_cast<std::uint32_t>(draining_.size()), EventKind::kAnnounce});
  draining_.clear();
  return true;
}

void Engine::announce(const OperationRef& operation, std::size_t& inline_budget) {
  const Request& request = operation->request;
  ++waiting_;
  const bool has_data = request.kind == OpKind::kAllreduce ||
                        (request.kind == OpKind::kBroadcast && request.root == world_.rank);
  const bool with_payload = has_data && operation->bytes <= std::min(kInlineBytes, inline_budget);
  if (with_payload) inline_budget -= operation->bytes;
  const Bytes payload = with_payload ? Bytes(operation->in, operation->bytes) : Bytes();

  std::uint32_t id = 0;
  const auto cached = request.cacheable ? cache_.find(request.name) : cache_.end();
  if (cached != cache_.end() && cached->second->request == request) {
    id = cached->second->id;
    cached->second->announced = operation;
    add(counters_.cache_hits, 1);
  } else {
    announced_.emplace(request.name, operation);
  }

  if (world_.rank == 0) {
    Announcement own;
    own.id = id;
    if (id == 0) own.request = request;
    own.has_payload = with_payload;
    own.payload = payload;
    if (!negotiator_->announce(0, own, operation->submitted)) {
      world_.link->abort(Code::kInternal, "the coordinator refused an announcement of its own");
    }
  } else {
    if (id != 0) {
      write_announced_id(outgoing_, id, with_payload);
    } else {
      write_announced_request(outgoing_, request, with_payload);
    }
    if (with_payload) outgoing_.bytes(payload);
  }
}

bool Engine::on_message(int peer, Bytes message) {
  if (world_.rank != 0) {
    Reader in(message);
    Decisions decisions;
    return read_decisions(in, decisions) && carry_out(decisions);
  }
  std::uint64_t acknowledged = 0;
  const Nanoseconds now = now_ns();
  const bool sane =
      read_announcements(message, acknowledged, [&](const Announcement& announcement) {
        return negotiator_->announce(peer, announcement, now);
      });
  if (sane) negotiator_->acknowledge(peer, acknowledged);
  return sane;
}

bool Engine::decide() {
  if (negotiator_ == nullptr || !negotiator_->anything_ready()) return false;
  const Nanoseconds now = now_ns();
  if (const Nanoseconds gap = now - last_decision_; gap < options_.cycle_time) {
    set_timer(options_.cycle_time - gap);
    return false;
  }
  last_decision_ = now;
  Decisions decisions = negotiator_->decide();
  outgoing_.clear();
  write_decisions(outgoing_, decisions);
  for (int peer = 1; peer < world_.size; ++peer) world_.link->send(peer, outgoing_.view());
  negotiator_->acknowledge(0, decisions.batch);
  return carry_out(decisions);
}

// ---------------------------------------------------------------------------------------------------
// Carrying out decisions

bool Engine::carry_out(Decisions& decisions) {
  for (Plan& plan : decisions.plans) {
    if (!carry_out(plan)) return false;
  }
  for (const std::uint32_t id : decisions.retired) {
    const auto known = cache_by_id_.find(id);
    if (known == cache_by_id_.end()) continue;
    CacheEntry* entry = known->second;
    cache_by_id_.erase(known);
    // An operation announced under the id is answered by name: the coordinator remembers the id.
    if (entry->announced != nullptr) {
      announced_.emplace(entry->announced->request.name, std::move(entry->announced));
    }
    const auto by_name = cache_.find(entry->request.name);
    if (by_name != cache_.end() && by_name->second.get() == entry) cache_.erase(by_name);
  }
  carried_out_ = decisions.batch;
  return true;
}

// The operation that a rank announced under a name, in full or by a cache id. The two sides may
// differ in which: while parameters change, or an id is being retired, some ranks send one and some
// the other.
OperationRef Engine::take_announced(const std::string& name) {
  if (const auto named = announced_.extract(name); !named.empty()) return std::move(named.mapped());
  const auto cached = cache_.find(name);
  return cached == cache_.end() ? nullptr : std::move(cached->second->announced);
}

OperationRef Engine::resolve(const PlanEntry& item) {
  if (item.id != 0) {
    const auto known = cache_by_id_.find(item.id);
    if (known == cache_by_id_.end()) return nullptr;
    if (known->second->announced != nullptr) return std::move(known->second->announced);
    return take_announced(known->second->request.name);
  }
  OperationRef operation = take_announced(item.name);
  if (operation != nullptr && item.assign_id != 0) {
    auto& slot = cache_[item.name];
    if (slot != nullptr) cache_by_id_.erase(slot->id);
    slot = std::make_unique<CacheEntry>(CacheEntry{operation->request, item.assign_id, nullptr});
    cache_by_id_[item.assign_id] = slot.get();
  }
  return operation;
}

bool Engine::carry_out(Plan& plan) {
  std::vector<OperationRef> operations;
  operations.reserve(plan.entries.size());
  for (const PlanEntry& item : plan.entries) {
    operations.push_back(resolve(item));
    if (operations.back() == nullptr) return false;
  }
  if (operations.empty()) return false;
  add(counters_.plans, 1);
  switch (plan.kind) {
    case Plan::Kind::kFail:
      for (const auto& operation : operations) {
        complete(operation, Status::error(Code::kMismatch, plan.error));
      }
      return true;
    case Plan::Kind::kInline:
      for (std::size_t i = 0; i < operations.size(); ++i) {
        const Operation& op = *operations[i];
        const std::size_t expected = op.request.kind == OpKind::kBarrier ? 0 : op.bytes;
        if (plan.entries[i].result.size() != expected) return false;
      }
      complete_inline(plan, operations);
      return true;
    case Plan::Kind::kRun:
      run_on_plane(plan, std::move(operations));
      return true;
  }
  return false;
}

void Engine::complete_inline(Plan& plan, std::vector<OperationRef>& operations) {
  add(counters_.inline_tensors, operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto& result = plan.entries[i].result;
    if (!result.empty()) std::memcpy(operations[i]->out, result.data(), result.size());
    complete(operations[i], {});
  }
}

void Engine::run_on_plane(const Plan& plan, std::vector<OperationRef> operations) {
  const Request& like = operations.front()->request;
  Work work;
  work.plan = plan.number;
  work.dtype = like.dtype;
  if (like.kind == OpKind::kBroadcast) {
    work.movement = Movement::kBroadcast;
    work.root = like.root;
  } else {
    work.prescale = prescale_of(like.prescale);
    work.postscale =
        postscale_of(like.postscale, like.reduce == ReduceOp::kAverage ? world_.size : 1);
  }
  Running running;
  for (auto& operation : operations) {
    if (operation->bytes == 0) {
      complete(operation, {});  // its peers had too many small tensors to send it along
      continue;
    }
    if (work.movement == Movement::kBroadcast && work.root == world_.rank &&
        operation->out != operation->in) {
      std::memcpy(operation->out, operation->in,
                  operation->bytes);  // planes write to the others only
    }
    work.segments.push_back({operation->in, operation->out, operation->bytes});
    work.bytes += operation->bytes;
    running.operations.push_back(std::move(operation));
  }
  if (work.segments.empty()) return;
  events_.record({now_ns(), 0, plan.number, work.bytes,
                  static_cast<std::uint32_t>(work.segments.size()), EventKind::kPlan});
  running.left = running.operations.size();
  running_.emplace(plan.number, std::move(running));
  world_.plane->submit(std::move(work));
}

void Engine::on_segment_done(std::uint64_t plan, std::size_t segment) {
  const auto found = running_.find(plan);
  Running& running = found->second;
  const OperationRef operation = std::move(running.operations[segment]);
  add(counters_.bytes, operation->bytes);
  if (--running.left == 0) {
    running_.erase(found);
    events_.record({now_ns(), 0, plan, 0, 0, EventKind::kComplete});
  }
  complete(operation, {});
}

void Engine::complete(OperationRef operation, Status status) {
  --waiting_;
  add(status.ok() ? counters_.completed : counters_.failed, 1);
  operation->status = std::move(status);
  finished_bytes_ += operation->bytes;
  finished_.push_back(std::move(operation));
  // Many small ones take the lock once; a large one is not kept waiting.
  if (finished_bytes_ >= kFinishBytes) publish_finished();
}

void Engine::publish_finished() {
  if (finished_.empty()) return;
  {
    const std::lock_guard lock(submit_mutex_);
    for (const OperationRef& operation : finished_) in_flight_.erase(operation->request.name);
  }
  for (OperationRef& operation : finished_) {
    operation->done.store(true, std::memory_order_release);
    if (operation->on_done) {
      pool_.post([done = std::move(operation)] { done->on_done(done->status); });
    }
  }
  finished_.clear();
  finished_bytes_ = 0;
  notify_local_waiters();
}

// ---------------------------------------------------------------------------------------------------
// When the world breaks

// `departed` was read before the last look for work: if nothing moved since, a rank that left
// cannot have left anything behind that would still complete what waits here; unless it carried out
// a batch of decisions that has yet to come from the coordinator, who tells one rank after the
// other.
void Engine::check_world(bool quiet, int departed) {
  if (const int dead = dead_rank_.load(std::memory_order_acquire);
      dead >= 0 && !world_.link->has_left(dead)) {
    Status lost = Status::error(Code::kPeerLost, describe_peer(dead) + " died");
    world_.link->abort(lost.code, lost.message);
    return fail_everything(std::move(lost));
  }
  Status failure = world_.link->failure();
  if (failure.ok()) failure = world_.plane->failure();
  if (!failure.ok()) {
    world_.link->abort(failure.code, failure.message);
    return fail_everything(std::move(failure));
  }
  const bool plane_will_tell = !running_.empty() && world_.plane->notices_departures();
  if (quiet && departed >= 0 && waiting_ > 0 && !plane_will_tell &&
      world_.link->left_after(departed) <= carried_out_) {
    fail_everything(Status::error(Code::kPeerLost, describe_peer(departed) + " has shut down"));
  }
}

std::string describe(const Peer& peer) {
  return "rank " + std::to_string(peer.rank) + " (host " + peer.host + ", pid " +
         std::to_string(peer.pid) + ")";
}

std::string Engine::describe_peer(int rank) const {
  for (const Peer& peer : world_.peers) {
    if (peer.rank == rank) return describe(peer);
  }
  return "rank " + std::to_string(rank);
}

std::string Engine::describe_pending() const {
  constexpr std::size_t kNamed = 5;
  std::vector<std::string_view> names;
  for (const auto& [name, operation] : in_flight_) names.push_back(name);
  std::sort(names.begin(), names.end());
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    text += (i == 0 ? "'" : ", '") + std::string(names[i]) + "'";
  }
  if (names.size() > kNamed) text += " and " + std::to_string(names.size() - kNamed) + " more";
  return text;
}

void Engine::fail_everything(Status reason) {
  broken_ = true;
  world_.plane->abort();
  running_.clear();
  announced_.clear();
  cache_.clear();
  cache_by_id_.clear();
  std::vector<OperationRef> lost;
  {
    const std::lock_guard lock(submit_mutex_);
    if (failure_.ok()) {
      failure_ = reason;
      if (reason.code == Code::kPeerLost) {
        failure_.message +=
            ". This world cannot go on: shut down and initialise again, or restart "
            "the job; the lost rank's own output says why it ended";
      }
    }
    if (!in_flight_.empty())
      reason.message = failure_.message + ". Pending here: " + describe_pending();
    for (auto& [name, operation] : in_flight_) lost.push_back(std::move(operation));
    in_flight_.clear();
    queue_.clear();
    add(counters_.failed, lost.size());
  }
  waiting_ = 0;
  if (lost.empty()) return;
  events_.record({now_ns(), 0, 0, 0, static_cast<std::uint32_t>(lost.size()), EventKind::kFail});
  for (const OperationRef& operation : lost) {
    operation->status = reason;
    operation->done.store(true, std::memory_order_release);
    if (operation->on_done) pool_.post([operation] { operation->on_done(operation->status); });
  }
  notify_local_waiters();
}

// ---------------------------------------------------------------------------------------------------
// The engine thread: drives what nobody waits for, and watches the peers

void Engine::run_thread() {
  std::vector<pollfd> fds;
  std::vector<pollfd> sockets;
  bool away = true;  // from the sockets: it has not asked for them, or a caller drives
  for (;;) {
    fds = {{world_.wake.get(), POLLIN, 0}, {timer_.get(), POLLIN, 0}};
    for (const Peer& peer : world_.peers) {
      fds.push_back({peer.pidfd ? peer.pidfd.get() : -1, POLLIN, 0});
    }
    fds.insert(fds.end(), sockets.begin(), sockets.end());
    // Idle ranks too must hear of departures and aborts: look before long whether nobody drives.
    ::poll(fds.data(), fds.size(), away ? kAwayTime : -1);
    add(counters_.thread_wakeups, 1);
    std::uint64_t ignored = 0;
    for (int i = 0; i < 2; ++i) {
      if (fds[static_cast<std::size_t>(i)].revents == 0) continue;
      [[maybe_unused]] const ssize_t n =
          ::read(fds[static_cast<std::size_t>(i)].fd, &ignored, sizeof ignored);
    }
    if (stopping_.load(std::memory_order_acquire)) return;
    notice_deaths(fds);
    sockets.clear();
    turned_away_ = true;  // before trying: the driver looks after it has unlocked
    away = !progress_.try_lock();
    if (!away) {
      turned_away_ = false;
      drive_from_thread(sockets);
      progress_.unlock();
      notify_local_waiters();
    } else if (fds[1].revents != 0) {
      world_.link->wake_self();  // what the timer was set for is the driver's business
    }
  }
}

void Engine::notice_deaths(const std::vector<pollfd>& fds) {
  for (std::size_t i = 0; i < world_.peers.size(); ++i) {
    if (fds[2 + i].revents == 0) continue;
    Peer& peer = world_.peers[i];
    peer.pidfd.reset();  // seen; only this thread uses it
    if (world_.link->has_left(peer.rank)) continue;
    // Whether its goodbye is only unread, check_world sees.
    const int known = dead_rank_.load(std::memory_order_acquire);
    if (known < 0 || world_.link->has_left(known)) {
      dead_rank_.store(peer.rank, std::memory_order_release);
    }
    world_.link->wake_self();  // whoever drives
  }
}

void Engine::drive_from_thread(std::vector<pollfd>& sockets) {
  std::uint32_t mark = 0;
  do {
    mark = world_.link->mark();
    while (step() && !stopping_.load(std::memory_order_acquire)) {
    }
  } while (!world_.link->park(mark, wanted_news()));
  if (broken_) return;  // nobody reads them any more
  world_.link->wanted_fds(sockets);
  world_.plane->wanted_fds(sockets);
}

}  // namespace khorovod
