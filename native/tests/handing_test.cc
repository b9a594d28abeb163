// Handed operations with ranks as threads: the engine agrees on them and orders them, an executor
// of the test "moves" them.
#include <map>

#include "tests/deaf_link.h"
#include "tests/local_world.h"
#include "tests/tcp_worlds.h"

#define TEST_IN_EVERY_WORLD(name)                                                         \
  static void name(const WorldMaker& make);                                               \
  static const Register register_shm_##name("shm." #name, [] { name(make_shm_worlds); }); \
  static const Register register_tcp_##name("tcp." #name, [] { name(make_tcp_worlds); }); \
  static void name(const WorldMaker& make)

namespace khorovod::testing {

namespace {

OperationRef handed_operation(OpKind kind, const std::string& name, std::int64_t rows,
                              std::int64_t token = 0) {
  auto operation = std::make_shared<Operation>();
  operation->request.kind = kind;
  operation->request.name = name;
  operation->request.handed = Handed::kOnCpu;
  operation->request.tensors = {{DType::kFloat32, {rows}}};
  operation->token = token;
  return operation;
}

// Takes works and finishes them until there are no more, remembering what it saw.
class Executor {
 public:
  explicit Executor(Engine& engine, std::string error = "") : engine_(engine) {
    engine.handing().open();
    thread_ = std::thread([this, error = std::move(error)] {
      while (!engine_.handing().wait_until_closed(0)) {
        const auto work = engine_.handing().next(kSecond);
        if (!work.has_value()) continue;
        seen_.push_back(*work);
        ++count_;
        engine_.finish_handed(work->number, error);
      }
    });
  }
  ~Executor() { end(); }
  void wait_for_one() const {
    while (count_ == 0) std::this_thread::yield();
  }
  // After the engine's end: what it saw.
  const std::vector<HandedWork>& end() {
    engine_.shutdown();
    if (thread_.joinable()) thread_.join();
    return seen_;
  }

 private:
  Engine& engine_;
  std::vector<HandedWork> seen_;
  std::atomic<int> count_{0};
  std::thread thread_;
};

Status carry_out(Engine& engine, const OperationRef& operation, bool caller_waits = true) {
  CHECK(engine.submit(operation, caller_waits).ok());
  return wait(engine, operation);
}

// No rank leaves before all are here.
void meet(Engine& engine) { CHECK(carry_out(engine, barrier_operation()).ok()); }

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_IN_EVERY_WORLD(works_come_in_the_order_of_plans) {
  std::mutex mutex;
  std::vector<std::vector<std::uint64_t>> plans;  // by rank
  std::vector<std::map<std::uint64_t, std::vector<std::string>>> names;
  run_world(make, 3, {}, [&](Engine& engine) {
    Executor executor(engine);
    for (int step = 0; step < 5; ++step) {
      std::vector<OperationRef> operations;
      for (int i = 0; i < 20; ++i) {
        const int which = (i + engine.rank() * 7) % 20;  // each rank its own order
        operations.push_back(
            handed_operation(which % 4 == 0 ? OpKind::kBroadcast : OpKind::kAllreduce,
                             "t" + std::to_string(which), 1 + which, which));
        CHECK(engine.submit(operations.back(), false).ok());
      }
      for (const auto& operation : operations) CHECK_EQ(wait(engine, operation).message, "");
    }
    CHECK(engine.counters().cache_hits.load() > 0);
    meet(engine);
    std::vector<std::uint64_t> mine;
    std::map<std::uint64_t, std::vector<std::string>> named;
    for (const HandedWork& work : executor.end()) {
      mine.push_back(work.plan);
      for (const auto& operation : work.operations) {
        CHECK_EQ("t" + std::to_string(operation->token), operation->request.name);
        named[work.plan].push_back(operation->request.name);
      }
    }
    const std::lock_guard lock(mutex);
    plans.push_back(mine);
    names.push_back(named);
  });
  CHECK(std::is_sorted(plans[0].begin(), plans[0].end()));
  CHECK(plans[1] == plans[0] && plans[2] == plans[0]);
  CHECK(names[1] == names[0] && names[2] == names[0]);
}

TEST_IN_EVERY_WORLD(the_engines_own_operations_stay_its_own) {
  run_world(make, 2, {}, [](Engine& engine) {
    Executor executor(engine);
    for (int i = 0; i < 30; ++i) {
      const std::vector<float> in(static_cast<std::size_t>(10 + i * 300), 1.0f);
      std::vector<float> out;
      const auto own = allreduce_operation("own", in, out);
      const auto handed =
          handed_operation(OpKind::kAllreduce, "handed", static_cast<std::int64_t>(in.size()));
      CHECK(engine.submit(own, false).ok());
      CHECK_EQ(carry_out(engine, handed).message, "");
      CHECK_EQ(wait(engine, own).message, "");
      CHECK_EQ(out.back(), 2.0f);
    }
    meet(engine);
    CHECK_EQ(executor.end().size(), 30u);
  });
}

TEST_IN_EVERY_WORLD(nobody_waits_for_a_handed_operation) {
  run_world(make, 2, {}, [](Engine& engine) {
    Executor executor(engine);
    const auto operation = handed_operation(OpKind::kAllreduce, "x", 4);
    std::atomic<int> called{0};
    operation->on_done = [&](const Status& status) { called = status.ok() ? 1 : 2; };
    CHECK(engine.submit(operation, false).ok());
    while (called == 0) std::this_thread::yield();
    CHECK_EQ(called.load(), 1);
    meet(engine);
  });
}

TEST_IN_EVERY_WORLD(everybody_knows_the_sizes) {
  run_world(make, 3, {}, [](Engine& engine) {
    Executor executor(engine);
    const int rank = engine.rank();
    CHECK_EQ(carry_out(engine, handed_operation(OpKind::kAllgather, "g", 5 + rank)).message, "");
    const auto exchange = handed_operation(OpKind::kAlltoall, "a", 3);
    exchange->request.numbers = {rank, 2 - rank, 1};
    CHECK_EQ(carry_out(engine, exchange).message, "");
    meet(engine);
    const auto& works = executor.end();
    CHECK_EQ(works.size(), 2u);
    CHECK((works[0].numbers.front() == std::vector<std::int64_t>{5, 6, 7}));
    CHECK((works[1].numbers.front() == std::vector<std::int64_t>{0, 2, 1, 1, 1, 1, 2, 0, 1}));
  });
}

TEST_IN_EVERY_WORLD(a_mix_of_devices_is_a_mismatch) {
  run_world(make, 3, {}, [](Engine& engine) {
    Executor executor(engine);
    for (int round = 0; round < 2; ++round) {
      const auto operation = handed_operation(OpKind::kAllreduce, "x", 4);
      if (engine.rank() == 1) operation->request.handed = Handed::kOnGpu;
      const Status status = carry_out(engine, operation);
      CHECK(status.code == Code::kMismatch);
      CHECK(has(status.message, "Mismatched ALLREDUCE CPU/GPU device selection"));
      CHECK(has(status.message, "rank 1 has a tensor on a GPU"));
      CHECK_EQ(carry_out(engine, handed_operation(OpKind::kAllreduce, "x", 4)).message, "");
    }
    meet(engine);
    CHECK_EQ(executor.end().size(), 2u);
  });
}

TEST_IN_EVERY_WORLD(an_error_of_an_executor_ends_the_world) {
  run_world(make, 3, {}, [](Engine& engine) {
    Executor executor(engine, engine.rank() == 2 ? "no more memory" : "");
    // The others may be done with it before they hear: then the next one fails.
    Status status;
    for (int i = 0; i < 1000 && status.ok(); ++i) {
      const auto operation = handed_operation(OpKind::kAllreduce, "x", 4);
      status = carry_out(engine, operation);
    }
    CHECK(!status.ok());
    CHECK(has(status.message, "rank 2"));
    CHECK(has(status.message, "could not carry out 'x': no more memory"));
    CHECK(engine.handing().wait_until_closed(60 * kSecond));
  });
}

TEST_IN_EVERY_WORLD(a_rank_that_left_is_named) {
  std::atomic<bool> left{false};
  run_world(make, 2, {}, [&](Engine& engine) {
    engine.handing().open();
    const auto operation = handed_operation(OpKind::kAllreduce, "x", 4);
    CHECK(engine.submit(operation, false).ok());
    if (engine.rank() == 1) {
      while (!engine.handing().next(kSecond).has_value()) {
      }
      engine.shutdown();
      left = true;
      return;
    }
    std::optional<HandedWork> work;
    while (!work.has_value()) work = engine.handing().next(kSecond);
    std::thread waiter([&] { CHECK(has(wait(engine, operation).message, "rank 1 (host here")); });
    while (!left) std::this_thread::yield();
    engine.finish_handed(work->number, "connection closed");
    waiter.join();
    CHECK(engine.handing().wait_until_closed(60 * kSecond));
    engine.finish_handed(work->number, "");  // nobody cares
  });
}

// Rank 2 leaves with the result of "last", so ranks 0 and 1 give up "more" while rank 3 still moves
// "last".
TEST_IN_EVERY_WORLD(a_result_under_way_is_not_lost_by_others_giving_up) {
  DeafLink::State state;
  run_world(with_deaf_link(make, 3, state), 4, {}, [&](Engine& engine) {
    const auto last = handed_operation(OpKind::kAllreduce, "last", 4);
    if (engine.rank() == 3) {
      engine.handing().open();
      CHECK(engine.submit(last, false).ok());
      std::thread waiter([&] { CHECK_EQ(wait(engine, last).message, ""); });
      std::optional<HandedWork> work;
      while (!work.has_value()) work = engine.handing().next(kSecond);
      while (!state.knows_failure) std::this_thread::yield();
      engine.finish_handed(work->number, "");
      waiter.join();
      return;
    }
    Executor executor(engine);
    CHECK_EQ(carry_out(engine, last).message, "");
    if (engine.rank() == 2) return;
    const Status status = carry_out(engine, handed_operation(OpKind::kAllreduce, "more", 4));
    CHECK(status.code == Code::kPeerLeft);
    CHECK(has(status.message, "rank 2 (host here"));
  });
}

// Rank 1 hears the result of "own" in the very step in which its executor fails.
TEST_IN_EVERY_WORLD(a_result_that_is_here_is_not_lost_by_an_executors_error) {
  DeafLink::State state;
  std::atomic<int> ready{0};
  run_world(with_deaf_link(make, 1, state), 2, {}, [&](Engine& engine) {
    engine.handing().open();
    const auto handed = handed_operation(OpKind::kAllreduce, "handed", 4);
    CHECK(engine.submit(handed, false).ok());
    std::thread waiter([&] { CHECK(!wait(engine, handed).ok()); });
    std::optional<HandedWork> work;
    while (!work.has_value()) work = engine.handing().next(kSecond);
    if (engine.rank() == 1) state.deaf = true;
    ++ready;
    while (ready < 2) std::this_thread::yield();
    const std::vector<float> in(10, 1.0f);
    std::vector<float> out;
    const auto own = allreduce_operation("own", in, out);
    std::atomic<int> called{0};
    own->on_done = [&](const Status& status) { called += status.ok() ? 1 : 100; };
    if (engine.rank() == 1) {
      CHECK(engine.submit(own, false).ok());
      while (ready < 3) std::this_thread::yield();
      state.on_hearing = [&] { engine.finish_handed(work->number, "no more memory"); };
      state.deaf = false;
    } else {
      CHECK(engine.submit(own, false).ok());
    }
    const Status status = wait(engine, own);
    if (engine.rank() == 0) ++ready;
    CHECK_EQ(status.message, "");
    CHECK_EQ(out[9], 2.0f);
    waiter.join();
    while (called == 0) std::this_thread::yield();
    engine.shutdown();
    CHECK_EQ(called.load(), 1);
  });
}

TEST_IN_EVERY_WORLD(who_has_joined_stands_in) {
  run_world(make, 3, {}, [](Engine& engine) {
    Executor executor(engine);
    if (engine.rank() != 1) {
      CHECK_EQ(carry_out(engine, handed_operation(OpKind::kAllreduce, "x", 4, 7)).message, "");
    }
    CHECK_EQ(carry_out(engine, bare_operation(OpKind::kJoin, "join", {0})).message, "");
    executor.wait_for_one();  // these executors do not wait for each other, nor does the join
    const auto& works = executor.end();
    CHECK_EQ(works.size(), 1u);
    const Operation& operation = *works[0].operations[0];
    CHECK_EQ(operation.stands_in, engine.rank() == 1);
    CHECK_EQ(operation.request.tensors[0].shape[0], 4);
  });
}

TEST_IN_EVERY_WORLD(nobody_stands_in_without_an_executor) {
  run_world(make, 2, {}, [](Engine& engine) {
    if (engine.rank() == 0) {
      engine.handing().open();
      const Status status = carry_out(engine, handed_operation(OpKind::kAllreduce, "x", 4));
      CHECK(has(status.message, "rank 1"));
      CHECK(has(status.message, "has no executor"));
      return;
    }
    CHECK(!carry_out(engine, bare_operation(OpKind::kJoin, "join", {0})).ok());
  });
}

TEST(alone_nothing_is_handed_out) {
  Engine engine(World{}, {});
  CHECK(carry_out(engine, handed_operation(OpKind::kAllreduce, "x", 4)).ok());
  CHECK(!engine.handing().next(0).has_value());
}

}  // namespace khorovod::testing

TEST_MAIN()
