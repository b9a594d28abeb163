// The TCP link by itself and under an engine: order of messages and departures, deaths, sleeping.
#include "engine/tcp_link.h"

#include <chrono>

#include "shm/doorbell.h"
#include "tests/tcp_worlds.h"

namespace khorovod::testing {

namespace {

using Links = std::vector<std::unique_ptr<TcpLink>>;

std::vector<std::string> plain_names(std::size_t size) {
  std::vector<std::string> names;
  for (std::size_t r = 0; r < size; ++r)
    names.push_back("rank " + std::to_string(r) + " (host here)");
  return names;
}

Links links_of(Mesh mesh) {
  Links links;
  const int size = static_cast<int>(mesh.size());
  for (int r = 0; r < size; ++r) {
    links.push_back(std::make_unique<TcpLink>(r, size, std::move(mesh[static_cast<std::size_t>(r)]),
                                              plain_names(mesh.size()), -1, std::vector<int>{}));
  }
  return links;
}

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// What came on the link, until `until` holds; fails the test if it never does.
template <typename Until>
std::vector<std::string> receive_until(TcpLink& link, Until until) {
  std::vector<std::string> messages;
  const Nanoseconds deadline = now_ns() + kHangNs;
  while (!until(messages)) {
    CHECK(now_ns() < deadline);
    link.receive([&](int, Bytes message) {
      messages.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
      return true;
    });
    link.flush();
  }
  return messages;
}

auto failed(const TcpLink& link) {
  return [&link](const auto&) { return !link.failure().ok(); };
}
auto departed(const TcpLink& link) {
  return [&link](const auto&) { return link.departed() >= 0; };
}

void all_messages_arrive_before_the_departure(Mesh mesh, std::size_t bytes_each) {
  Links links = links_of(std::move(mesh));
  // The leaver has input that it never reads, and more comes after it has gone.
  links[0]->send(1, bytes_of("never read"));
  std::thread leaver([&] {
    for (int i = 0; i < 100; ++i) {
      links[1]->send(0, bytes_of(std::to_string(i) + std::string(bytes_each, '.')));
    }
    links[1]->leave(0, "");
    links[1].reset();
  });
  const auto messages = receive_until(*links[0], [&](const auto&) {
    links[0]->send(1, bytes_of("late"));
    return links[0]->departed() >= 0;
  });
  leaver.join();
  CHECK_EQ(messages.size(), 100u);
  CHECK(messages[99].starts_with("99."));
  CHECK_EQ(links[0]->departed(), 1);
  CHECK(links[0]->has_left(1));
  for (int i = 0; i < 10; ++i) {
    links[0]->send(1, bytes_of("nobody is there"));
    links[0]->receive([](int, Bytes) { return true; });
  }
  CHECK_EQ(links[0]->failure().message, "");
  CHECK(!links[0]->backlog());
}

}  // namespace

TEST(all_messages_arrive_before_the_departure_tcp) {
  all_messages_arrive_before_the_departure(make_tcp_mesh(2), 20);
}
TEST(all_messages_arrive_before_the_departure_small_buffers) {
  all_messages_arrive_before_the_departure(make_tcp_mesh(2, 4096), 5000);
}
TEST(all_messages_arrive_before_the_departure_unix) {
  int fds[2];
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  Mesh mesh(2);
  mesh[0].resize(2);
  mesh[1].resize(2);
  mesh[0][1].reset(fds[0]);
  mesh[1][0].reset(fds[1]);
  all_messages_arrive_before_the_departure(std::move(mesh), 20);
}

TEST(a_connection_that_ends_is_a_lost_rank) {
  Links links = links_of(make_tcp_mesh(3));
  links[2]->send(0, bytes_of("last words"));
  links[2].reset();
  const auto messages = receive_until(*links[0], failed(*links[0]));
  CHECK_EQ(messages.size(), 1u);
  CHECK(links[0]->failure().code == Code::kPeerLost);
  CHECK_EQ(
      links[0]->failure().message,
      "rank 2 (host here) closed its connection without saying goodbye: it died or was killed");
  std::vector<pollfd> fds;
  links[0]->wanted_fds(fds);
  CHECK(fds.empty());
}

TEST(an_abort_reaches_everybody_with_its_reason) {
  Links links = links_of(make_tcp_mesh(3));
  links[1]->abort(Status::error(Code::kInternal, "the reason"));
  links[1]->abort(Status::error(Code::kPeerLost, "a later one"));
  links[1]->leave(0, "");
  links[1].reset();
  for (const std::size_t r : {0u, 2u}) {
    receive_until(*links[r], failed(*links[r]));
    CHECK(links[r]->failure().code == Code::kInternal);
    CHECK_EQ(links[r]->failure().message, "the reason");
  }
}

TEST(a_departure_comes_after_the_coordinators_messages) {
  Links links = links_of(make_tcp_mesh(3));
  links[1]->leave(0, "");
  for (int i = 0; i < 100; ++i) links[2]->receive([](int, Bytes) { return true; });
  CHECK(links[2]->has_left(1));
  CHECK_EQ(links[2]->departed(), -1);  // the coordinator may have sent a decision before
  CHECK_EQ(links[2]->left_after(1), UINT64_MAX);
  links[0]->send(2, bytes_of("decision"));
  receive_until(*links[0], departed(*links[0]));
  const auto messages = receive_until(*links[2], departed(*links[2]));
  CHECK_EQ(messages.size(), 1u);
  CHECK_EQ(links[2]->departed(), 1);
  CHECK_EQ(links[2]->left_after(1), 0u);
}

TEST(a_coordinator_is_heard_out_though_others_have_given_up) {
  Links links = links_of(make_tcp_mesh(3));
  const auto polled = [&] {
    std::vector<pollfd> fds;
    links[2]->wanted_fds(fds);
    return fds.size();
  };
  links[1]->abort(Status::error(Code::kPeerLeft, "somebody left"));
  receive_until(*links[2], failed(*links[2]));
  CHECK(links[2]->decisions_may_come(0));
  CHECK_EQ(polled(), 1u);
  links[0]->send(2, bytes_of("decision"));
  links[0]->abort(Status::error(Code::kPeerLeft, "somebody left, says the coordinator"));
  const auto messages =
      receive_until(*links[2], [&](const auto&) { return !links[2]->decisions_may_come(0); });
  CHECK_EQ(messages.size(), 1u);
  CHECK_EQ(links[2]->failure().message, "somebody left");
  CHECK_EQ(polled(), 0u);
}

TEST(who_has_given_up_hears_nobody_out) {
  Links links = links_of(make_tcp_mesh(3));
  links[2]->abort(Status::error(Code::kPeerLeft, "somebody left"));
  std::vector<pollfd> fds;
  links[2]->wanted_fds(fds);
  CHECK(fds.empty());
}

TEST(ranks_that_leave_together_do_not_wait_for_each_other) {
  Links links = links_of(make_tcp_mesh(4));
  for (int r = 1; r < 4; ++r) links[0]->send(r, bytes_of("unread"));
  std::vector<std::thread> threads;
  for (auto& link : links) {
    threads.emplace_back([&] {
      link->leave(0, "");
      link.reset();
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(leaving_gives_up_on_a_rank_that_never_reads) {
  Links links = links_of(make_tcp_mesh(2, 4096));
  links[0]->send(1, bytes_of(std::string(1 << 20, '.')));
  CHECK(links[0]->backlog());
  links[0]->leave(0, "");  // or this test runs out of time
}

TEST(a_control_message_between_two_others_is_refused) {
  Mesh mesh = make_tcp_mesh(3);
  const UniqueFd two = std::move(mesh[2][1]);
  TcpLink link(1, 3, std::move(mesh[1]), plain_names(3), -1, {});
  const unsigned char frame[] = {2, 0, 0, 0, 0, 7};
  CHECK_EQ(::send(two.get(), frame, sizeof frame, 0), ssize_t{sizeof frame});
  receive_until(link, failed(link));
  CHECK(link.failure().code == Code::kInternal);
}

TEST(a_wake_up_ends_the_sleep_and_calls_the_engine_thread) {
  Mesh mesh = make_tcp_mesh(2);
  const UniqueFd thread_wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  TcpLink link(0, 2, std::move(mesh[0]), plain_names(2), thread_wake.get(), {});
  std::vector<pollfd> none;
  CHECK(link.sleep(link.mark(), {}, none, kMillisecond) == Wakeup::kTimeout);
  for (int i = 0; i < 200; ++i) {
    const std::uint32_t mark = link.mark();
    std::thread waker([&] { link.wake_self(); });
    CHECK(link.sleep(mark, {}, none, 100 * kSecond) == Wakeup::kNews);
    waker.join();
    CHECK(!link.park(mark, {}));
    CHECK(link.news_since(mark));
  }
  std::uint64_t rung = 0;
  CHECK_EQ(::read(thread_wake.get(), &rung, sizeof rung), ssize_t{sizeof rung});
  CHECK_EQ(rung, 200u);
  // A socket's news ends the sleep too.
  while (link.sleep(link.mark(), {}, none, kMillisecond) != Wakeup::kTimeout) {
  }
  CHECK_EQ(::send(mesh[1][0].get(), "", 1, 0), 1);
  CHECK(link.sleep(link.mark(), {}, none, 100 * kSecond) == Wakeup::kNews);
}

TEST(engines_name_the_rank_that_died_and_then_rest) {
  Mesh control = make_tcp_mesh(3);
  Mesh data = make_tcp_mesh(3);
  std::vector<UniqueFd> dead_control = std::move(control[2]);
  std::vector<UniqueFd> dead_data = std::move(data[2]);
  control[2].resize(3);
  data[2].resize(3);
  std::vector<World> worlds = worlds_of(std::move(control), std::move(data));
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Engine engine(std::move(worlds[static_cast<std::size_t>(r)]), {});
      const std::vector<float> in(100'000, 1.0f);
      std::vector<float> out;
      const auto op = allreduce_operation("x", in, out);
      CHECK(engine.submit(op, r == 0).ok());
      const Status status = wait(engine, op);
      CHECK(status.code == Code::kPeerLost);
      CHECK(status.message.find("rank 2 (host here, pid ") != std::string::npos);
      CHECK(status.message.find("'x'") != std::string::npos);
      const auto wakeups = engine.counters().thread_wakeups.load();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      CHECK(engine.counters().thread_wakeups.load() - wakeups < 10);
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  dead_control.clear();
  dead_data.clear();
  for (auto& thread : threads) thread.join();
}

// Every rank but one is idle and drove last: the departure must still come through the coordinator.
TEST(a_departure_is_heard_while_the_coordinator_computes) {
  run_world(make_tcp_worlds, 3, {}, [](Engine& engine) {
    const std::vector<float> in(10, 1.0f);
    std::vector<float> out;
    for (int i = 0; i < 20; ++i) {
      const auto op = allreduce_operation("warm", in, out);
      CHECK(engine.submit(op, true).ok());
      CHECK_EQ(wait(engine, op).message, "");
    }
    if (engine.rank() == 1) return engine.shutdown();
    if (engine.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      return;
    }
    const auto op = allreduce_operation("x", in, out);
    CHECK(engine.submit(op, true).ok());
    CHECK(wait(engine, op).code == Code::kPeerLeft);
    CHECK(op->status.message.find("rank 1 (host here") != std::string::npos);
  });
}

}  // namespace khorovod::testing

TEST_MAIN()
