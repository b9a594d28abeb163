// The TCP plane by itself: every movement, borders of chunks, streams that are uneven or empty,
// sets that overlap, slow and late ranks, connections that end or carry nonsense. Ranks are
// threads, or take turns in one thread by a seeded die.
#include "planes/tcp_plane.h"

#include <thread>

#include "tests/plane_runs.h"
#include "tests/tcp_mesh.h"

namespace khorovod::testing {

namespace {

constexpr std::size_t kSmallChunk = 4096;  // 1024 floats
constexpr int kSmallBuffers = 4096;
const std::vector<std::size_t> kBorders = {1, 15, 16, 17, 33, 1023, 1024, 1025, 2048, 5000, 40'961};
const std::vector<std::size_t> kBordersOnTheWire = {1, 31, 33, 2047, 2048, 2049, 30'001};
constexpr std::size_t kMost = 6000;  // elements of a tensor of random works

Planes make_planes(int size, std::size_t chunk_bytes, int buffer_bytes = 0) {
  Mesh mesh = make_tcp_mesh(size, buffer_bytes);
  Planes planes;
  for (int r = 0; r < size; ++r) {
    std::vector<std::string> names;
    for (int p = 0; p < size; ++p) names.push_back("rank " + std::to_string(p));
    planes.push_back(
        std::make_unique<TcpPlane>(r, size, std::move(mesh[at(r)]), std::move(names), chunk_bytes));
  }
  return planes;
}

void borders(Movement movement) {
  for (const int size : {2, 3, 5}) {
    check_jobs(make_planes(size, kSmallChunk), border_jobs(movement, size, kBorders));
  }
}

void slow_and_late(int size) {
  check_jobs(make_planes(size, kSmallChunk, kSmallBuffers),
             random_jobs(40, {all_ranks(size)}, static_cast<unsigned>(size), kMost), true);
}

// A work of two ranks, and the header of an item that rank 1 pretends to send for it.
Status pretend(ItemHeader header, const JobSpec& spec) {
  Mesh mesh = make_tcp_mesh(2);
  TcpPlane plane(0, 2, std::move(mesh[0]), {"", "rank 1"}, kSmallChunk);
  CHECK_EQ(::send(mesh[1][0].get(), &header, sizeof header, 0), ssize_t{sizeof header});
  std::vector<Job> jobs = jobs_of(0, numbered({spec}, 2));
  return run_jobs(plane, jobs, {});
}

void check_refused(ItemHeader header, const JobSpec& spec = {.counts = {5000}}) {
  const Status status = pretend(header, spec);
  CHECK(status.code == Code::kInternal);
  CHECK(status.message.starts_with("data from rank 1 make no sense: "));
}

}  // namespace

TEST(allreduce_at_borders) { borders(Movement::kAllreduce); }
TEST(broadcast_at_borders) { borders(Movement::kBroadcast); }
TEST(allgather_at_borders) { borders(Movement::kAllgather); }
TEST(alltoall_at_borders) { borders(Movement::kAlltoall); }
TEST(reducescatter_at_borders) { borders(Movement::kReducescatter); }
TEST(another_type_on_the_wire_2) {
  check_jobs(make_planes(2, kSmallChunk), converted_jobs(2, kBordersOnTheWire));
}
TEST(another_type_on_the_wire_3) {
  check_jobs(make_planes(3, kSmallChunk), converted_jobs(3, kBordersOnTheWire));
}
TEST(another_type_on_the_wire_5) {
  check_jobs(make_planes(5, kSmallChunk), converted_jobs(5, kBordersOnTheWire));
}
TEST(slow_and_late_ranks_2) { slow_and_late(2); }
TEST(slow_and_late_ranks_3) { slow_and_late(3); }
TEST(slow_and_late_ranks_5) { slow_and_late(5); }

TEST(overlapping_sets_in_threads) {
  check_jobs(make_planes(3, kSmallChunk, kSmallBuffers),
             random_jobs(80, overlapping_sets(3), 1, kMost), true);
}

TEST(overlapping_sets_by_turns) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    check_by_turns(make_planes(3, kSmallChunk, kSmallBuffers),
                   random_jobs(40, overlapping_sets(3), seed, kMost), seed);
  }
}

TEST(sets_of_a_larger_world_by_turns) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    check_by_turns(make_planes(5, kSmallChunk, kSmallBuffers),
                   random_jobs(30, overlapping_sets(5), seed, kMost), seed);
  }
}

TEST(more_small_tensors_than_one_call_takes) {
  JobSpec many{.counts = std::vector<std::size_t>(3000), .in_place = true};
  for (std::size_t i = 0; i < many.counts.size(); ++i) many.counts[i] = 1 + i % 50;
  JobSpec sent = many;
  sent.movement = Movement::kBroadcast;
  sent.root = 1;
  check_jobs(make_planes(3, TcpPlane::kChunkBytes), {many, sent, many});
}

TEST(whole_chunks_of_the_real_size) {
  std::vector<JobSpec> jobs;
  for (const Movement movement : {Movement::kAllreduce, Movement::kBroadcast, Movement::kAllgather,
                                  Movement::kAlltoall, Movement::kReducescatter}) {
    jobs.push_back({.movement = movement, .counts = {1'000'000}, .in_place = true});
  }
  check_jobs(make_planes(2, TcpPlane::kChunkBytes), jobs);
  check_jobs(make_planes(3, TcpPlane::kChunkBytes), jobs);
}

TEST(a_rank_that_ends_midway_is_named_by_the_others) {
  for (const Movement movement : {Movement::kAllreduce, Movement::kAlltoall}) {
    for (unsigned round = 0; round < 10; ++round) {
      Planes planes = make_planes(3, kSmallChunk, kSmallBuffers);
      const auto specs = numbered({{.movement = movement, .counts = {200'000}}}, 3);
      // Whatever of it is uneven, rank 1 has more to give and to take than the buffers hold.
      if (movement == Movement::kAlltoall) {
        CHECK(count_between(specs[0], 0, 1, 0) + count_between(specs[0], 0, 0, 1) > 50'000);
        CHECK(count_between(specs[0], 0, 1, 2) + count_between(specs[0], 0, 2, 1) > 50'000);
      }
      std::vector<std::thread> threads;
      for (int rank = 0; rank < 3; ++rank) {
        threads.emplace_back([&, rank] {
          auto& plane = planes[at(rank)];
          std::vector<Job> jobs = jobs_of(rank, specs);
          if (rank == 1) {
            plane->submit(jobs[0].work);
            for (unsigned i = 0; i < round; ++i) plane->advance([](std::uint64_t, std::size_t) {});
            plane.reset();
            return;
          }
          const Status status = run_jobs(*plane, jobs, {});
          CHECK(status.code == Code::kPeerLost);
          CHECK(status.message.starts_with("rank 1 "));
          std::vector<pollfd> fds;
          plane->wanted_fds(fds);
          CHECK(fds.empty());
        });
      }
      for (auto& thread : threads) thread.join();
    }
  }
}

TEST(a_rank_may_go_when_it_has_done_its_part) {
  Planes planes = make_planes(3, kSmallChunk);
  const auto specs = numbered({{.movement = Movement::kBroadcast, .counts = {5000}}}, 3);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<Job> jobs = jobs_of(rank, specs);
    CHECK_EQ(run_jobs(*planes[at(rank)], jobs, {}).message, "");  // the kernel's buffers take it
    planes[at(rank)].reset();
  }
}

// The loss of a rank matters only to works that it is in.
TEST(others_go_on_without_a_rank) {
  Planes planes = make_planes(3, kSmallChunk);
  const auto specs = numbered({{.counts = {5000}, .members = members_of({0, 1})},
                               {.counts = {5000}, .members = members_of({0, 2})}},
                              3);
  planes[2].reset();
  std::thread other([&] {
    std::vector<Job> jobs = jobs_of(1, specs);
    CHECK_EQ(run_jobs(*planes[1], jobs, {}).message, "");
  });
  std::vector<Job> jobs = jobs_of(0, specs);
  std::size_t done = 0;
  for (const Job& job : jobs) planes[0]->submit(job.work);
  while (planes[0]->failure().ok()) {
    planes[0]->advance([&](std::uint64_t, std::size_t) { ++done; });
  }
  other.join();
  CHECK_EQ(done, 1u);
  CHECK(planes[0]->failure().message.starts_with("rank 2 "));
}

// The plan of these works is 1; rank 0's share of a chunk of 1024 floats is 2048 bytes.
TEST(headers_that_make_no_sense_are_refused) {
  check_refused({.plan = 1, .what = 0, .bytes = 12345});
  check_refused({.plan = 2, .what = 0, .bytes = 2048});
  check_refused({.plan = 1, .what = 2, .bytes = 2048});
  check_refused({.plan = 1, .what = 0xffffffff, .bytes = 0xffffffff});
  check_refused({.plan = 1, .what = 1, .bytes = 2047});
  check_refused({.plan = 1, .what = 0, .bytes = 0},
                {.movement = Movement::kReducescatter, .counts = {5000}});
  check_refused({.plan = 1, .what = 0, .bytes = 2048},
                {.movement = Movement::kAlltoall, .counts = {100}});
}

// A result for what rank 0 has not sent yet: its memory is still being read.
TEST(a_result_before_its_input_is_refused) {
  Mesh mesh = make_tcp_mesh(2, kSmallBuffers);
  TcpPlane plane(0, 2, std::move(mesh[0]), {"", "rank 1"}, TcpPlane::kChunkBytes);
  const ItemHeader header{.plan = 1, .what = 1, .bytes = TcpPlane::kChunkBytes / 2};
  CHECK_EQ(::send(mesh[1][0].get(), &header, sizeof header, 0), ssize_t{sizeof header});
  std::vector<Job> jobs = jobs_of(0, numbered({{.counts = {1'000'000}}}, 2));
  const Status status = run_jobs(plane, jobs, {});
  CHECK(status.message.ends_with("is too early"));
}

TEST(what_is_not_heard_of_yet_waits) {
  Planes planes = make_planes(2, kSmallChunk);
  const auto specs = numbered({{.counts = {5000}}}, 2);
  std::vector<Job> early = jobs_of(0, specs);
  std::vector<Job> late = jobs_of(1, specs);
  planes[0]->submit(early[0].work);
  while (planes[0]->advance([](std::uint64_t, std::size_t) {})) {
  }
  CHECK(!planes[1]->advance([](std::uint64_t, std::size_t) {}));
  std::vector<pollfd> fds;
  planes[1]->wanted_fds(fds);
  CHECK(fds.empty());
  std::thread other([&] { CHECK(run_jobs(*planes[1], late, {}).ok()); });
  DoneBook book(early);
  while (!book.complete()) planes[0]->advance(std::ref(book));
  other.join();
}

}  // namespace khorovod::testing

TEST_MAIN()
