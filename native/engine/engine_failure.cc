// What the engine does when a rank is lost or the world breaks otherwise.
#include <algorithm>

#include "engine/engine.h"

namespace khorovod {

namespace {

// How long what may still complete is waited for in a world that somebody has given up.
constexpr Nanoseconds kLastWait = 400 * kMillisecond;

}  // namespace

// Whether the plane is stuck for good: it waits for a rank that has left, and did not leave
// anything behind that would move it on.
bool Engine::stuck_on_departed(int& blocker) {
  blocker = world_.plane->awaited_in_vain([this](int rank) { return world_.link->has_left(rank); });
  if (blocker < 0) return false;
  const bool moved = advance_plane();
  publish_finished();
  return !moved;
}

// A rank that has left though operations here wait for it, or -1; best the one that left first:
// others may have left because of it. Without the coordinator nothing goes on.
int Engine::awaited_in_vain(int first) const {
  // All that it carried out has been carried out here.
  const auto has_left_for_good = [this](int rank) {
    return rank != world_.rank && world_.link->has_left(rank) &&
           world_.link->left_after(rank) <= carried_out_;
  };
  int found = has_left_for_good(0) ? 0 : -1;
  const std::lock_guard lock(submit_mutex_);
  for (const auto& [key, operation] : in_flight_) {
    for (const int rank : operation->members->ranks) {
      if (!has_left_for_good(rank)) continue;
      if (rank == first) return first;
      found = rank;
    }
  }
  return found;
}

// `departed` was read before the last look for work: if nothing moved since, a rank that left
// cannot have left anything behind that would still complete what waits here; unless it carried out
// a batch of decisions that has yet to come from the coordinator, who tells one rank after the
// other; or bytes of it are under way, which ranks that are still here move on.
void Engine::check_world(bool quiet, int departed) {
  if (const int dead = dead_rank_.load(std::memory_order_acquire);
      dead >= 0 && !world_.link->has_left(dead)) {
    // Its goodbye may have come since this step looked for messages.
    if (receive()) quiet = false;
    if (!world_.link->has_left(dead)) {
      return give_up(Status::lost(dead, describe_peer(dead) + " died"));
    }
  }
  Status failure = world_.link->failure();
  if (failure.ok() && !world_.plane->failure().ok()) {
    // A rank whose connection has ended may have said why before: that another one died, say.
    if (receive()) quiet = false;
    failure = world_.link->failure();
    if (failure.ok()) failure = world_.plane->failure();
  }
  if (!failure.ok()) {
    if (is_departure(failure) && (!quiet || results_may_come()) && last_wait_goes_on()) return;
    return give_up(std::move(failure));
  }
  if (!quiet || departed < 0 || waiting_ == 0) return;
  if (running_.empty()) {
    const int awaited = awaited_in_vain(departed);
    if (awaited >= 0) give_up(departure(awaited));
    return;
  }
  int blocker = -1;
  if (!world_.plane->notices_departures() && stuck_on_departed(blocker)) {
    Status lost = departure(blocker);
    if (blocker != departed) lost.message += "; " + describe_peer(departed) + " had done so before";
    give_up(std::move(lost));
  }
}

// Somebody has given up because a rank left; nobody died. Over sockets that may be heard before the
// rank's own goodbye.
bool Engine::is_departure(const Status& failure) const {
  return failure.code == Code::kPeerLeft || (failure.code == Code::kPeerLost && failure.rank >= 0 &&
                                             world_.link->has_left(failure.rank));
}

// Whoever gives up because a rank has left, with its results, may be ahead of this rank, which is
// still moving them, or whom the coordinator has yet to tell of them.
bool Engine::results_may_come() {
  if (waiting_ == 0 || !world_.plane->failure().ok()) return false;
  int blocker = -1;
  if (!running_.empty()) return !stuck_on_departed(blocker);
  return world_.link->decisions_may_come(carried_out_);
}

// Not for ever: who has to act for it may have given up too.
bool Engine::last_wait_goes_on() {
  const Nanoseconds now = now_ns();
  if (last_wait_ == 0) last_wait_ = now + kLastWait;
  return now < last_wait_;
}

// Others may wait for this rank to move bytes, which it now never will: they must know.
void Engine::give_up(Status reason) {
  world_.link->abort(reason);
  fail_everything(std::move(reason));
}

// Of a rank that left because its program ended, whoever started it may know the exit code.
Status Engine::departure(int rank) const {
  const std::string words = world_.link->last_words(rank);
  return Status{Code::kPeerLeft,
                describe_peer(rank) + " has shut down" + (words.empty() ? "" : ": " + words),
                words.empty() ? -1 : rank};
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
  std::vector<std::string> names;
  for (const auto& [key, operation] : in_flight_) names.push_back(operation->request.label());
  std::sort(names.begin(), names.end());
  return quoted_list(names, kNamed);
}

void Engine::fail_everything(Status reason) {
  publish_finished();  // these have their results
  broken_ = true;
  handing_.close();
  world_.plane->abort();
  running_.clear();
  announced_.clear();
  joined_.reset();
  cache_.clear();
  cache_by_id_.clear();
  std::vector<OperationRef> lost;
  {
    const std::lock_guard lock(submit_mutex_);
    if (failure_.ok()) {
      failure_ = reason;
      if (reason.code == Code::kPeerLost || reason.code == Code::kPeerLeft) {
        failure_.message +=
            ". This world cannot go on: shut down and initialise again, or restart the job";
        if (reason.rank >= 0) failure_.message += "; the lost rank's own output says why it ended";
      }
    }
    if (!in_flight_.empty())
      reason.message = failure_.message + ". Pending here: " + describe_pending();
    for (auto& [key, operation] : in_flight_) lost.push_back(std::move(operation));
    in_flight_.clear();
    queue_.clear();
    add(counters_.failed, lost.size());
  }
  waiting_ = 0;
  if (lost.empty()) return;
  events_.record({now_ns(), 0, 0, static_cast<std::uint32_t>(lost.size()), EventKind::kFail});
  for (const OperationRef& operation : lost) {
    operation->status = reason;
    operation->done.store(true, std::memory_order_release);
    if (operation->on_done) pool_.post([operation] { operation->on_done(operation->status); });
  }
  notify_local_waiters();
}

}  // namespace khorovod
