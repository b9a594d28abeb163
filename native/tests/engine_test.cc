// The engine with ranks as threads: results against plain loops, every size, dtype and way to wait,
// in shared memory and over sockets.
#include <random>

#include "tests/local_world.h"
#include "tests/tcp_worlds.h"

// The body is run with `make` for each kind of world.
#define TEST_IN_EVERY_WORLD(name)                                                         \
  static void name(const WorldMaker& make);                                               \
  static const Register register_shm_##name("shm." #name, [] { name(make_shm_worlds); }); \
  static const Register register_tcp_##name("tcp." #name, [] { name(make_tcp_worlds); }); \
  static void name(const WorldMaker& make)

namespace khorovod::testing {

namespace {

// Small integers: sums are exact in every type, so any order of addition gives the same value.
template <typename T>
std::vector<T> input_of(int rank, std::size_t count, int salt) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>((static_cast<int>(i) * 7 + rank * 13 + salt) % 101 - 50);
  }
  return values;
}

template <typename T>
std::vector<T> sum_of(int size, std::size_t count, int salt) {
  std::vector<T> total(count, T{0});
  for (int r = 0; r < size; ++r) {
    const auto values = input_of<T>(r, count, salt);
    for (std::size_t i = 0; i < count; ++i) total[i] += values[i];
  }
  return total;
}

template <typename T>
void allreduce_many_sizes(const WorldMaker& make, int size) {
  run_world(make, size, {}, [&](Engine& engine) {
    int salt = 0;
    for (const std::size_t count : {0u, 1u, 3u, 500u, 4097u, 70'000u, 300'001u}) {
      const auto in = input_of<T>(engine.rank(), count, ++salt);
      std::vector<T> out;
      const auto op = allreduce_operation("t" + std::to_string(count), in, out);
      CHECK(engine.submit(op, true).ok());
      const Status status = wait(engine, op);
      CHECK_EQ(status.message, "");
      CHECK(out == sum_of<T>(size, count, salt));
    }
  });
}

void async_steps(const WorldMaker& make, int size, int tensors, int steps) {
  run_world(make, size, {}, [&](Engine& engine) {
    std::mt19937 random(static_cast<unsigned>(engine.rank()));
    for (int step = 0; step < steps; ++step) {
      std::vector<int> order(static_cast<std::size_t>(tensors));
      for (int i = 0; i < tensors; ++i) order[static_cast<std::size_t>(i)] = i;
      std::shuffle(order.begin(), order.end(), random);  // each rank its own order
      std::vector<std::vector<float>> in(order.size());
      std::vector<std::vector<float>> out(order.size());
      std::vector<OperationRef> ops(order.size());
      for (const int i : order) {
        const auto at = static_cast<std::size_t>(i);
        in[at] = input_of<float>(engine.rank(), 16 + at * 37, step + i);
        ops[at] = allreduce_operation("grad." + std::to_string(i), in[at], out[at]);
        CHECK(engine.submit(ops[at], false).ok());
      }
      for (std::size_t i = 0; i < ops.size(); ++i) {
        CHECK_EQ(wait(engine, ops[i]).message, "");
        CHECK(out[i] == sum_of<float>(size, in[i].size(), step + static_cast<int>(i)));
      }
    }
    CHECK(engine.counters().cache_hits.load() > 0);
  });
}

}  // namespace

TEST_IN_EVERY_WORLD(allreduce_float32_2) { allreduce_many_sizes<float>(make, 2); }
TEST_IN_EVERY_WORLD(allreduce_float32_3) { allreduce_many_sizes<float>(make, 3); }
TEST_IN_EVERY_WORLD(allreduce_float32_5) { allreduce_many_sizes<float>(make, 5); }
TEST_IN_EVERY_WORLD(allreduce_float64_4) { allreduce_many_sizes<double>(make, 4); }
TEST_IN_EVERY_WORLD(allreduce_int32_2) { allreduce_many_sizes<std::int32_t>(make, 2); }
TEST_IN_EVERY_WORLD(allreduce_int64_3) { allreduce_many_sizes<std::int64_t>(make, 3); }
TEST_IN_EVERY_WORLD(async_in_any_order_2) { async_steps(make, 2, 100, 5); }
TEST_IN_EVERY_WORLD(async_in_any_order_3) { async_steps(make, 3, 30, 5); }

TEST_IN_EVERY_WORLD(nobody_waits) {
  run_world(make, 2, {}, [](Engine& engine) {
    const auto in = input_of<float>(engine.rank(), 1000, 0);
    std::vector<float> out;
    const auto op = allreduce_operation("lazy", in, out);
    std::atomic<int> called{0};
    op->on_done = [&](const Status& status) { called = status.ok() ? 1 : 2; };
    CHECK(engine.submit(op, false).ok());
    while (called == 0) std::this_thread::yield();
    CHECK_EQ(called.load(), 1);
    CHECK(out == sum_of<float>(2, 1000, 0));
  });
}

TEST_IN_EVERY_WORLD(broadcast_every_root_and_barrier) {
  run_world(make, 3, {}, [](Engine& engine) {
    for (int root = 0; root < 3; ++root) {
      for (const std::size_t count : {1u, 5000u, 200'000u}) {
        auto data = input_of<double>(engine.rank(), count, 3);
        const auto op = broadcast_operation("b", data, root);
        CHECK(engine.submit(op, true).ok());
        CHECK_EQ(wait(engine, op).message, "");
        CHECK(data == input_of<double>(root, count, 3));
      }
      const auto barrier = barrier_operation();
      CHECK(engine.submit(barrier, true).ok());
      CHECK_EQ(wait(engine, barrier).message, "");
    }
  });
}

TEST_IN_EVERY_WORLD(average_truncates_integers_toward_zero) {
  run_world(make, 2, {}, [](Engine& engine) {
    const std::vector<std::int64_t> in = engine.rank() == 0 ? std::vector<std::int64_t>{3, -3, 7}
                                                            : std::vector<std::int64_t>{0, 0, 7};
    std::vector<std::int64_t> out;
    const auto op = allreduce_operation("avg", in, out, ReduceOp::kAverage);
    CHECK(engine.submit(op, true).ok());
    CHECK_EQ(wait(engine, op).message, "");
    CHECK((out == std::vector<std::int64_t>{1, -1, 7}));
  });
}

TEST_IN_EVERY_WORLD(a_mismatch_names_both_ranks_and_the_engine_goes_on) {
  run_world(make, 3, {}, [](Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      const std::vector<float> in(engine.rank() == 2 ? 11 : 10, 1.0f);
      std::vector<float> out;
      const auto bad = allreduce_operation("x", in, out);
      CHECK(engine.submit(bad, true).ok());
      const Status status = wait(engine, bad);
      CHECK(status.code == Code::kMismatch);
      CHECK(status.message.find("rank 2") != std::string::npos);
      CHECK(status.message.find("[11]") != std::string::npos);
      const std::vector<float> same(10, 1.0f);
      const auto good = allreduce_operation("x", same, out);
      CHECK(engine.submit(good, true).ok());
      CHECK_EQ(wait(engine, good).message, "");
      CHECK_EQ(out[9], 3.0f);
    }
  });
}

TEST_IN_EVERY_WORLD(a_name_in_flight_is_refused) {
  run_world(make, 2, {}, [](Engine& engine) {
    const std::vector<float> in(10, 1.0f);
    std::vector<float> out;
    const auto first = allreduce_operation("same", in, out);
    std::vector<float> other;
    const auto second = allreduce_operation("same", in, other);
    CHECK(engine.submit(first, false).ok());
    if (!first->is_done()) {
      const Status refused = engine.submit(second, false);
      CHECK(refused.code == Code::kInvalid || first->is_done());
    }
    CHECK_EQ(wait(engine, first).message, "");
  });
}

TEST_IN_EVERY_WORLD(many_threads_wait_on_one_engine) {
  run_world(make, 2, {}, [](Engine& engine) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&engine, t] {
        for (int i = 0; i < 50; ++i) {
          const auto in =
              input_of<float>(engine.rank(), 300 + static_cast<std::size_t>(t) * 1000, i);
          std::vector<float> out;
          const auto op = allreduce_operation("thread." + std::to_string(t), in, out);
          CHECK(engine.submit(op, i % 2 == 0).ok());
          CHECK_EQ(wait(engine, op).message, "");
          CHECK(out == sum_of<float>(2, in.size(), i));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST_IN_EVERY_WORLD(shutdown_of_one_rank_fails_what_the_others_wait_for) {
  run_world(make, 3, {}, [](Engine& engine) {
    if (engine.rank() == 1) {
      engine.shutdown();
      return;
    }
    const std::vector<float> in(100'000, 1.0f);
    std::vector<float> out;
    const auto op = allreduce_operation("x", in, out);
    CHECK(engine.submit(op, true).ok());
    const Status status = wait(engine, op);
    CHECK(status.code == Code::kPeerLost);
    CHECK(status.message.find("rank 1 (host here") != std::string::npos);
    CHECK(status.message.find("'x'") != std::string::npos);
  });
}

TEST_IN_EVERY_WORLD(own_shutdown_fails_what_is_pending) {
  run_world(make, 2, {}, [](Engine& engine) {
    if (engine.rank() == 1) {
      const std::vector<float> in(10, 1.0f);
      std::vector<float> out;
      const auto op = allreduce_operation("x", in, out);
      CHECK(engine.submit(op, false).ok());
      std::thread waiter([&] { CHECK(wait(engine, op).code != Code::kOk); });
      engine.shutdown();
      waiter.join();
      CHECK(engine.submit(allreduce_operation("y", in, out), true).code == Code::kShutdown);
    }
  });
}

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

TEST_IN_EVERY_WORLD(a_small_cache_evicts_and_stays_right) {
  EngineOptions options;
  options.negotiator.cache_capacity = 5;
  run_world(make, 2, options, [](Engine& engine) {
    std::mt19937 random(7);  // the same names on both ranks
    for (int i = 0; i < 400; ++i) {
      const int which = static_cast<int>(random() % 12);
      const auto in = input_of<float>(engine.rank(), 10 + static_cast<std::size_t>(which), i);
      std::vector<float> out;
      const auto op = allreduce_operation("n" + std::to_string(which), in, out);
      CHECK(engine.submit(op, i % 3 != 0).ok());
      CHECK_EQ(wait(engine, op).message, "");
      CHECK(out == sum_of<float>(2, in.size(), i));
    }
  });
}

TEST_IN_EVERY_WORLD(cycle_time_delays_but_completes) {
  EngineOptions options;
  options.cycle_time = 5 * kMillisecond;
  run_world(make, 2, options, [](Engine& engine) {
    for (int i = 0; i < 5; ++i) {
      const std::vector<float> in(10, 1.0f);
      std::vector<float> out;
      const auto op = allreduce_operation("x", in, out);
      CHECK(engine.submit(op, i % 2 == 0).ok());
      CHECK_EQ(wait(engine, op).message, "");
      CHECK_EQ(out[0], 2.0f);
    }
  });
}

}  // namespace khorovod::testing

TEST_MAIN()
