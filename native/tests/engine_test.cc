// The engine with ranks as threads: results against plain loops, every size, dtype and way to wait,
// in shared memory, over sockets and by MPI.
#include <atomic>
#include <random>

#include "tests/every_world.h"

namespace khorovod::testing {

namespace {

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
    CHECK(status.code == Code::kPeerLeft);
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

namespace {

// The ranks of a set in turn give rows 1, 2, ...; every value says who gave it.
std::vector<float> block_of(int rank, int rows) {
  return std::vector<float>(static_cast<std::size_t>(rows) * 1000, static_cast<float>(rank));
}

void gather_scatter_and_exchange(Engine& engine, std::uint32_t set) {
  const MembersRef members = engine.members(set);
  const int n = members->size();
  const int me = members->index_of(engine.rank());
  std::vector<float> gathered;
  const auto mine = block_of(engine.rank(), me + 1);
  const auto gather = sized_operation(OpKind::kAllgather, "g", mine, gathered);
  gather->request.set = set;
  run(engine, gather);
  std::vector<float> expected;
  for (int m = 0; m < n; ++m) {
    const auto block = block_of(members->ranks[static_cast<std::size_t>(m)], m + 1);
    expected.insert(expected.end(), block.begin(), block.end());
  }
  CHECK(gathered == expected);

  std::vector<float> scattered;
  const std::vector<float> whole = input_of<float>(me, 20'003, 5);
  const auto scatter = sized_operation(OpKind::kReducescatter, "r", whole, scattered);
  scatter->request.set = set;
  run(engine, scatter);
  const auto total = sum_of<float>(n, whole.size(), 5);
  const Rows rows = rows_of_member(static_cast<std::int64_t>(whole.size()), me, n);
  CHECK(std::equal(scattered.begin(), scattered.end(), total.begin() + rows.begin,
                   total.begin() + rows.begin + rows.count));

  // To each member as many thousands as its place, from each of them.
  std::vector<std::int64_t> splits;
  std::vector<float> sent;
  for (int m = 0; m < n; ++m) {
    splits.push_back(1000 * m);
    sent.insert(sent.end(), static_cast<std::size_t>(1000 * m), static_cast<float>(me * 10 + m));
  }
  std::vector<float> received;
  const auto exchange = sized_operation(OpKind::kAlltoall, "a", sent, received);
  exchange->request.set = set;
  exchange->request.numbers = splits;
  run(engine, exchange);
  std::vector<float> from_all;
  for (int m = 0; m < n; ++m) {
    from_all.insert(from_all.end(), static_cast<std::size_t>(1000 * me),
                    static_cast<float>(m * 10 + me));
  }
  CHECK(received == from_all);
  CHECK(exchange->numbers == std::vector<std::int64_t>(static_cast<std::size_t>(n), 1000 * me));
}

}  // namespace

TEST_IN_EVERY_WORLD(gather_scatter_and_exchange_3) {
  run_world(make, 3, {}, [](Engine& engine) {
    for (int i = 0; i < 3; ++i) gather_scatter_and_exchange(engine, 0);
  });
}

TEST_IN_EVERY_WORLD(overlapping_process_sets_in_any_order) {
  run_world(make, 3, {}, [](Engine& engine) {
    const auto add = bare_operation(OpKind::kAddProcessSets, "add", {2, 0, 1, 2, 1, 2, 2, 0, 2});
    run(engine, add);
    CHECK((add->numbers == std::vector<std::int64_t>{1, 2, 3}));
    std::mt19937 random(static_cast<unsigned>(engine.rank()));
    for (int step = 0; step < 10; ++step) {
      std::vector<std::uint32_t> order{0, 1, 2, 3};
      std::shuffle(order.begin(), order.end(), random);
      std::vector<OperationRef> operations;
      std::vector<std::vector<float>> in(4);
      std::vector<std::vector<float>> out(4);
      for (const std::uint32_t set : order) {
        const MembersRef members = engine.members(set);
        if (!members->contains(engine.rank())) continue;
        const int me = members->index_of(engine.rank());
        in[set] = input_of<float>(me, 100'000, step);
        operations.push_back(allreduce_operation("same name", in[set], out[set]));
        operations.back()->request.set = set;
        CHECK(engine.submit(operations.back(), false).ok());
      }
      for (const auto& operation : operations) {
        CHECK_EQ(wait(engine, operation).message, "");
        const auto set = operation->request.set;
        CHECK(out[set] == sum_of<float>(operation->members->size(), 100'000, step));
      }
    }
    for (const std::uint32_t set : {1u, 2u, 3u}) {
      if (engine.members(set)->contains(engine.rank())) gather_scatter_and_exchange(engine, set);
    }
    run(engine, bare_operation(OpKind::kRemoveProcessSet, "remove", {2}));
    CHECK(engine.members(2) == nullptr);
  });
}

TEST_IN_EVERY_WORLD(joined_ranks_contribute_nothing) {
  run_world(make, 3, {}, [](Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      for (int step = 0; step <= engine.rank(); ++step) {
        for (const std::size_t count : {10u, 100'000u}) {
          const std::vector<float> in(count, 2.0f);
          std::vector<float> out;
          const auto op = allreduce_operation("x" + std::to_string(count), in, out,
                                              step % 2 == 0 ? ReduceOp::kSum : ReduceOp::kProduct);
          op->request.prescale = 0.5;
          run(engine, op);
          CHECK_EQ(out.back(), step % 2 == 0 ? static_cast<float>(3 - step) : 1.0f);
        }
      }
      const auto join = bare_operation(OpKind::kJoin, "join");
      run(engine, join);
      CHECK((join->numbers == std::vector<std::int64_t>{2, 0}));
    }
  });
}

TEST_IN_EVERY_WORLD(a_group_is_one_operation) {
  run_world(make, 2, {}, [](Engine& engine) {
    for (const std::size_t count : {3u, 50'000u}) {
      const auto a = input_of<float>(engine.rank(), count, 1);
      const auto b = input_of<std::int64_t>(engine.rank(), count + 1, 2);
      std::vector<float> a_out(a.size());
      std::vector<std::int64_t> b_out(b.size());
      const auto op = allreduce_operation("group", a, a_out);
      op->request.grouped = true;
      op->request.tensors.push_back({DType::kInt64, {static_cast<std::int64_t>(b.size())}});
      op->parts.push_back({reinterpret_cast<const std::byte*>(b.data()),
                           reinterpret_cast<std::byte*>(b_out.data())});
      run(engine, op);
      CHECK(a_out == sum_of<float>(2, a.size(), 1));
      CHECK(b_out == sum_of<std::int64_t>(2, b.size(), 2));
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

TEST(a_thread_gives_way_for_as_long_as_that_helps) {
  YieldTime time;
  CHECK_EQ(time.now(), YieldTime::kLongest);
  time.helped();
  CHECK_EQ(time.now(), YieldTime::kLongest);
  time.was_in_vain();
  CHECK_EQ(time.now(), YieldTime::kLongest / 2);
  for (int i = 0; i < 32; ++i) time.was_in_vain();
  CHECK_EQ(time.now(), 0);
  time.helped();
  CHECK_EQ(time.now(), kMicrosecond);
  for (int i = 0; i < 8; ++i) time.helped();
  CHECK_EQ(time.now(), YieldTime::kLongest);
}

}  // namespace khorovod::testing

TEST_MAIN()
