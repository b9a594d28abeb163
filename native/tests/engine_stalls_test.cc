// Stalls with ranks as threads: who is late is told to all that wait, and the world ends if it
// must.
#include <atomic>
#include <chrono>

#include "tests/local_world.h"
#include "tests/tcp_worlds.h"

namespace khorovod::testing {

namespace {

// What the observers of a world have heard, by rank.
class Heard {
 public:
  explicit Heard(int size) : texts_(static_cast<std::size_t>(size)) {}

  Observer observer(int rank) {
    return {.place = [rank] { return "place of " + std::to_string(rank); },
            .warn =
                [this, rank](const std::string& text) {
                  const std::lock_guard lock(mutex_);
                  texts_[static_cast<std::size_t>(rank)] += text + "\n";
                }};
  }
  bool has(int rank, const std::string& part) const {
    const std::lock_guard lock(mutex_);
    return texts_[static_cast<std::size_t>(rank)].find(part) != std::string::npos;
  }
  void wait_for(int rank, const std::string& part) const {
    while (!has(rank, part)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;  // guarded by mutex_
};

void run(const WorldMaker& make, int size, StallRules rules, Heard& heard,
         const std::function<void(Engine&)>& body) {
  EngineOptions options;
  options.stall = rules;
  std::vector<World> worlds = make(size);
  std::vector<std::unique_ptr<Engine>> engines;
  for (World& world : worlds) {
    const int rank = world.rank;
    engines.push_back(std::make_unique<Engine>(std::move(world), options, heard.observer(rank)));
  }
  std::vector<std::thread> threads;
  for (auto& engine : engines) threads.emplace_back([&] { body(*engine); });
  for (auto& thread : threads) thread.join();
}

Status reduce(Engine& engine, const std::string& name) {
  const std::vector<float> in(10, 1.0f);
  std::vector<float> out;
  const OperationRef operation = allreduce_operation(name, in, out);
  CHECK(engine.submit(operation, true).ok());
  return wait(engine, operation);
}

// The late rank comes only when the others have heard of it.
void late(const WorldMaker& make, int victim) {
  Heard heard(3);
  run(make, 3, {.warn = 20 * kMillisecond}, heard, [&](Engine& engine) {
    CHECK(reduce(engine, "before").ok());
    if (engine.rank() == victim) {
      for (int other = 0; other < 3; ++other) {
        if (other != victim) heard.wait_for(other, "is at place of " + std::to_string(victim));
      }
    }
    CHECK(reduce(engine, "awaited").ok());
    CHECK(reduce(engine, "after").ok());
  });
  CHECK(heard.has(0, "has not submitted 'awaited'"));
  CHECK(heard.has(0, "the latest first: 'before'"));
}

void too_late(const WorldMaker& make, int victim) {
  Heard heard(3);
  std::atomic<int> ended{0};
  run(make, 3, {.warn = 20 * kMillisecond, .shutdown = 60 * kMillisecond}, heard,
      [&](Engine& engine) {
        if (engine.rank() == victim) {
          while (ended.load() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        const Status status = reduce(engine, "awaited");
        CHECK(status.code == Code::kPeerLost);
        CHECK(status.message.find("rank " + std::to_string(victim)) != std::string::npos);
        CHECK(status.message.find("has not submitted 'awaited'") != std::string::npos);
        ++ended;
      });
}

// Each waits for another name.
void across(const WorldMaker& make) {
  Heard heard(2);
  run(make, 2, {.warn = 20 * kMillisecond, .shutdown = 60 * kMillisecond}, heard,
      [&](Engine& engine) {
        const Status status = reduce(engine, "only." + std::to_string(engine.rank()));
        CHECK(status.code == Code::kPeerLost);
        CHECK(status.message.find("has not submitted 'only.0'") != std::string::npos);
        CHECK(status.message.find("has not submitted 'only.1'") != std::string::npos);
      });
}

}  // namespace

TEST(shm_the_coordinator_is_late) { late(make_shm_worlds, 0); }
TEST(shm_another_rank_is_late) { late(make_shm_worlds, 2); }
TEST(tcp_the_coordinator_is_late) { late(make_tcp_worlds, 0); }
TEST(tcp_another_rank_is_late) { late(make_tcp_worlds, 2); }
TEST(shm_the_coordinator_is_too_late) { too_late(make_shm_worlds, 0); }
TEST(shm_another_rank_is_too_late) { too_late(make_shm_worlds, 2); }
TEST(tcp_the_coordinator_is_too_late) { too_late(make_tcp_worlds, 0); }
TEST(tcp_another_rank_is_too_late) { too_late(make_tcp_worlds, 2); }
TEST(shm_both_wait_for_each_other) { across(make_shm_worlds); }
TEST(tcp_both_wait_for_each_other) { across(make_tcp_worlds); }

}  // namespace khorovod::testing

TEST_MAIN()
