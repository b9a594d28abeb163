// A link whose rank hears others when the test wants it to, and that says what its engine knows.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/local_world.h"

namespace khorovod::testing {

// While it is deaf, its coordinator is slow to tell it anything.
class DeafLink : public Link {
 public:
  struct State {
    std::atomic<bool> deaf{false};
    std::atomic<bool> knows_failure{false};
    std::function<void()> on_hearing{};  // called once, before what comes is heard
  };

  DeafLink(std::unique_ptr<Link> link, State& state) : link_(std::move(link)), state_(state) {}

  const char* name() const override { return link_->name(); }
  void send(int peer, Bytes message) override { link_->send(peer, message); }
  bool receive(const Receiver& receiver) override {
    if (state_.deaf) return false;
    if (const auto call = std::exchange(state_.on_hearing, nullptr)) call();
    return link_->receive(receiver);
  }
  bool flush() override { return link_->flush(); }
  bool backlog() const override { return link_->backlog(); }
  Status failure() const override {
    Status failure = link_->failure();
    if (!failure.ok()) state_.knows_failure = true;
    return failure;
  }
  void abort(const Status& reason) override { link_->abort(reason); }
  void leave(std::uint64_t batch, const std::string& words) override { link_->leave(batch, words); }
  int departed() const override { return link_->departed(); }
  bool has_left(int peer) const override { return link_->has_left(peer); }
  std::string last_words(int peer) const override { return link_->last_words(peer); }
  std::uint64_t left_after(int peer) const override { return link_->left_after(peer); }
  bool decisions_may_come(std::uint64_t carried_out) const override {
    return link_->decisions_may_come(carried_out);
  }
  std::uint32_t mark() const override { return link_->mark(); }
  bool news_since(std::uint32_t mark) const override { return link_->news_since(mark); }
  Wakeup sleep(std::uint32_t mark, Wanted wanted, std::vector<pollfd>& fds,
               Nanoseconds timeout) override {
    return link_->sleep(mark, wanted, fds, timeout);
  }
  bool park(std::uint32_t mark, Wanted wanted) override { return link_->park(mark, wanted); }
  void wanted_fds(std::vector<pollfd>& fds) const override { link_->wanted_fds(fds); }
  void wake(int peer) override { link_->wake(peer); }
  void wake_self() override { link_->wake_self(); }

 private:
  std::unique_ptr<Link> link_;
  State& state_;
};

// Worlds in which the link of `rank` is such a one.
inline WorldMaker with_deaf_link(const WorldMaker& make, std::size_t rank, DeafLink::State& state) {
  return [make, rank, &state](int size) {
    std::vector<World> worlds = make(size);
    worlds[rank].link = std::make_unique<DeafLink>(std::move(worlds[rank].link), state);
    return worlds;
  };
}

}  // namespace khorovod::testing
