// The engine thread: drives what nobody waits for, and watches the peers.
#include <unistd.h>

#include <algorithm>

#include "engine/engine.h"

namespace khorovod {

namespace {

// After this time the engine thread looks whether the caller that drove has gone.
constexpr Nanoseconds kAwayTime = 200 * kMillisecond;

// While a timeline is recorded, what idle ranks have for it is sent this often.
constexpr Nanoseconds kTraceTime = 100 * kMillisecond;

// The sooner of a timeout (negative: none) and a time from now.
Nanoseconds sooner(Nanoseconds timeout, Nanoseconds left) {
  left = std::max<Nanoseconds>(left, 0);
  return timeout < 0 ? left : std::min(timeout, left);
}

void wait_for(std::vector<pollfd>& fds, Nanoseconds timeout) {
  const timespec time{timeout / kSecond, timeout % kSecond};
  ::ppoll(fds.data(), fds.size(), timeout < 0 ? nullptr : &time, nullptr);
}

}  // namespace

void Engine::run_thread() {
  std::vector<pollfd> fds;
  std::vector<pollfd> sockets;
  bool away = true;  // from the sockets: it has not asked for them, or a caller drives
  Vigil vigil;
  for (;;) {
    fds = {{world_.wake.get(), POLLIN, 0}, {timer_.get(), POLLIN, 0}};
    for (const Peer& peer : world_.peers) {
      fds.push_back({peer.pidfd ? peer.pidfd.get() : -1, POLLIN, 0});
    }
    fds.insert(fds.end(), sockets.begin(), sockets.end());
    // Idle ranks too must hear of departures and aborts: look before long whether nobody drives.
    const bool tracing = tracing_alone_.load(std::memory_order_relaxed);
    Nanoseconds timeout = tracing ? kTraceTime : (away ? kAwayTime : -1);
    if (!away && vigil.look_at != 0) timeout = sooner(timeout, vigil.look_at - now_ns());
    if (!away && vigil.poll_after != Vigil::kAny) timeout = sooner(timeout, vigil.poll_after);
    wait_for(fds, timeout);
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
      vigil = drive_from_thread(sockets);
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

Engine::Vigil Engine::drive_from_thread(std::vector<pollfd>& sockets) {
  std::uint32_t mark = 0;
  do {
    mark = world_.link->mark();
    while (step() && !stopping_.load(std::memory_order_acquire)) {
    }
  } while (!world_.link->park(mark, wanted_news()));
  if (broken_) return {};  // nobody reads them any more
  world_.link->wanted_fds(sockets);
  world_.plane->wanted_fds(sockets);
  const bool watching = options_.stall.warn > 0 && (waiting_ > 0 || inquest_.open);
  Vigil vigil;
  if (watching) vigil.look_at = std::max<Nanoseconds>(next_look_, 1);
  if (last_wait_ != 0) {
    vigil.look_at = watching ? std::min(vigil.look_at, last_wait_) : last_wait_;
  }
  if (world_.plane->polls()) vigil.poll_after = poll_pause(now_ns() - stirred_, options_.spin);
  return vigil;
}

}  // namespace khorovod
