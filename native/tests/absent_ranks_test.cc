// Ranks that have left or have nothing to do, while others go on: what these still get, and what
// they are told.
#include <atomic>
#include <chrono>
#include <future>

#include "engine/plan.h"
#include "tests/deaf_link.h"
#include "tests/every_world.h"

namespace khorovod::testing {

namespace {

void sleep_until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

TEST_IN_EVERY_WORLD(the_last_result_survives_the_coordinators_departure) {
  for (int round = 0; round < 50; ++round) {
    run_world(make, 2, {}, [&](Engine& engine) {
      const auto in = input_of<float>(engine.rank(), round % 2 == 0 ? 10 : 400'000, round);
      std::vector<float> out;
      const auto op = allreduce_operation("last", in, out);
      CHECK(engine.submit(op, true).ok());
      CHECK_EQ(wait(engine, op).message, "");
      CHECK(out == sum_of<float>(2, in.size(), round));
      engine.shutdown();
    });
  }
}

// Rank 2 leaves with the result of "last", so ranks 0 and 1 give up "more"; rank 3 hears nothing of
// that result until `hear` is called, which waits until it knows that others have given up.
void last_result_of_a_deaf_rank(
    const std::function<void(Engine&, const OperationRef& last, const std::function<void()>& hear)>&
        check) {
  DeafLink::State state{.deaf = true};
  run_world(with_deaf_link(make_shm_worlds, 3, state), 4, {}, [&](Engine& engine) {
    const auto in = input_of<float>(engine.rank(), 10, 1);
    std::vector<float> out;
    std::vector<float> more_out;
    const auto last = allreduce_operation("last", in, out);
    if (engine.rank() == 3) {
      check(engine, last, [&] {
        while (!state.knows_failure) std::this_thread::yield();
        state.deaf = false;
      });
      if (last->status.ok()) CHECK(out == sum_of<float>(4, in.size(), 1));
      return;
    }
    CHECK(engine.submit(last, true).ok());
    CHECK_EQ(wait(engine, last).message, "");
    if (engine.rank() == 2) return engine.shutdown();
    const auto more = allreduce_operation("more", in, more_out);
    CHECK(engine.submit(more, true).ok());
    CHECK(wait(engine, more).code == Code::kPeerLeft);
  });
}

TEST(a_result_that_others_have_is_not_lost_by_their_giving_up) {
  last_result_of_a_deaf_rank(
      [](Engine& engine, const OperationRef& last, const std::function<void()>& hear) {
        CHECK(engine.submit(last, true).ok());
        std::thread other(hear);
        CHECK_EQ(wait(engine, last).message, "");
        other.join();
      });
}

TEST(a_result_that_never_comes_is_given_up_though_nobody_waits) {
  last_result_of_a_deaf_rank(
      [](Engine& engine, const OperationRef& last, const std::function<void()>&) {
        std::promise<Status> done;
        last->on_done = [&](const Status& status) { done.set_value(status); };
        CHECK(engine.submit(last, true).ok());
        CHECK(done.get_future().get().code == Code::kPeerLeft);
      });
}

// Rank 0 decides on what it takes no part in, though it does nothing else.
TEST_IN_EVERY_WORLD(a_set_without_the_coordinator_does_not_wait_for_it) {
  std::atomic<int> done{0};
  run_world(make, 3, {}, [&](Engine& engine) {
    run(engine, bare_operation(OpKind::kAddProcessSets, "add", {2, 1, 2}));
    if (engine.rank() == 0) return sleep_until([&] { return done == 2; });
    const int me = engine.rank() - 1;
    for (int round = 0; round < 5; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until rank 0 rests
      // More to announce than a mailbox holds.
      std::vector<OperationRef> operations;
      std::vector<std::vector<float>> in(1000);
      std::vector<std::vector<float>> out(in.size());
      for (std::size_t i = 0; i < in.size(); ++i) {
        in[i] = input_of<float>(me, i % 100 == 0 ? 100'000 : 10, round);
        const std::string name = std::string(200, 'x') + std::to_string(round * 1000 + i);
        operations.push_back(allreduce_operation(name, in[i], out[i]));
        operations.back()->request.set = 1;
        CHECK(engine.submit(operations.back(), false).ok());
      }
      for (std::size_t i = 0; i < in.size(); ++i) {
        CHECK_EQ(wait(engine, operations[i]).message, "");
        CHECK(out[i] == sum_of<float>(2, in[i].size(), round));
      }
    }
    ++done;
  });
}

// Rank 2 leaves after batches that rank 3 never heard of, and after another rank has left.
TEST_IN_EVERY_WORLD(the_second_to_leave_is_told_of_too) {
  std::atomic<int> left{0};
  std::atomic<bool> told{false};
  run_world(make, 4, {}, [&](Engine& engine) {
    run(engine, bare_operation(OpKind::kAddProcessSets, "add", {2, 0, 2, 2, 2, 3}));
    const auto in = input_of<float>(engine.rank(), 10, 1);
    std::vector<float> out;
    const auto in_set = [&](std::uint32_t set, const std::string& name) {
      const auto operation = allreduce_operation(name, in, out);
      operation->request.set = set;
      return operation;
    };
    if (engine.rank() == 1) {
      engine.shutdown();
      ++left;
      return;
    }
    if (engine.rank() == 3) {
      sleep_until([&] { return left == 2; });
      const auto operation = in_set(2, "in vain");
      CHECK(engine.submit(operation, true).ok());
      const Status status = wait(engine, operation);
      told = true;
      CHECK(status.code == Code::kPeerLeft);
      CHECK(status.message.find("rank 2 (host here") != std::string::npos);
      return;
    }
    sleep_until([&] { return left == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until rank 0 has told of it
    for (int i = 0; i < 10; ++i) run(engine, in_set(1, "more." + std::to_string(i)));
    if (engine.rank() == 2) {
      engine.shutdown();
      ++left;
      return;
    }
    sleep_until([&] { return told.load(); });
  });
}

// A correct rank says that all of its traces are there only if they were asked for.
TEST_IN_EVERY_WORLD(an_end_of_traces_that_nobody_asked_for_is_harmless) {
  const WorldMaker with_message = [&](int size) {
    std::vector<World> worlds = make(size);
    Writer message;
    write_message_header(message, 0);
    write_traces(message, {});
    worlds[1].link->send(0, message.view());
    return worlds;
  };
  run_world(with_message, 2, {}, [](Engine& engine) {
    const auto in = input_of<float>(engine.rank(), 10, 1);
    std::vector<float> out;
    run(engine, allreduce_operation("x", in, out));
    CHECK(out == sum_of<float>(2, in.size(), 1));
  });
}

}  // namespace khorovod::testing

TEST_MAIN()
