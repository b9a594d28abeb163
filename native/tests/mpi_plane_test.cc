// The MPI plane by itself, on an MPI whose ranks are threads or take turns: every movement, borders
// of chunks, sets that overlap, late ranks, messages of the wrong size, planes that are abandoned.
#include "planes/mpi_plane.h"

#include "engine/polling.h"
#include "tests/fake_mpi.h"
#include "tests/plane_runs.h"

namespace khorovod::testing {

namespace {

constexpr std::size_t kSmallChunk = 4096;  // 1024 floats
const std::vector<std::size_t> kBorders = {1, 15, 16, 17, 33, 1023, 1024, 1025, 2048, 5000, 40'961};
const std::vector<std::size_t> kBordersOnTheWire = {1, 31, 33, 2047, 2048, 2049, 30'001};
constexpr std::size_t kMost = 6000;  // elements of a tensor of random works
constexpr int kTag = 40;

std::unique_ptr<MpiPlane> make_plane(int rank, int size, std::shared_ptr<PostOffice> office,
                                     std::size_t chunk_bytes, int tag = kTag) {
  std::vector<std::string> names;
  for (int p = 0; p < size; ++p) names.push_back("rank " + std::to_string(p));
  return std::make_unique<MpiPlane>(rank, size, std::make_unique<FakeMpi>(rank, std::move(office)),
                                    tag, std::move(names), chunk_bytes);
}

Planes make_planes(int size, std::size_t chunk_bytes,
                   const std::shared_ptr<PostOffice>& office = std::make_shared<PostOffice>(),
                   int tag = kTag) {
  Planes planes;
  for (int r = 0; r < size; ++r) planes.push_back(make_plane(r, size, office, chunk_bytes, tag));
  return planes;
}

void borders(Movement movement) {
  for (const int size : {2, 3, 5}) {
    check_jobs(make_planes(size, kSmallChunk), border_jobs(movement, size, kBorders));
  }
}

}  // namespace

TEST(allreduce_at_borders) { borders(Movement::kAllreduce); }
TEST(broadcast_at_borders) { borders(Movement::kBroadcast); }
TEST(allgather_at_borders) { borders(Movement::kAllgather); }
TEST(alltoall_at_borders) { borders(Movement::kAlltoall); }
TEST(reducescatter_at_borders) { borders(Movement::kReducescatter); }
TEST(another_type_on_the_wire) {
  for (const int size : {2, 3, 5}) {
    check_jobs(make_planes(size, kSmallChunk), converted_jobs(size, kBordersOnTheWire));
  }
}

TEST(late_ranks) {
  for (const int size : {2, 3, 5}) {
    check_jobs(make_planes(size, kSmallChunk),
               random_jobs(40, {all_ranks(size)}, static_cast<unsigned>(size), kMost), true);
  }
}

TEST(overlapping_sets_in_threads) {
  check_jobs(make_planes(3, kSmallChunk), random_jobs(80, overlapping_sets(3), 1, kMost), true);
}

TEST(overlapping_sets_by_turns) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    check_by_turns(make_planes(3, kSmallChunk), random_jobs(40, overlapping_sets(3), seed, kMost),
                   seed);
  }
}

TEST(sets_of_a_larger_world_by_turns) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    check_by_turns(make_planes(5, kSmallChunk), random_jobs(30, overlapping_sets(5), seed, kMost),
                   seed);
  }
}

TEST(whole_chunks_of_the_real_size) {
  std::vector<JobSpec> jobs;
  for (const Movement movement : kMovements) {
    jobs.push_back({.movement = movement, .counts = {1'000'000}, .in_place = true});
  }
  check_jobs(make_planes(2, MpiPlane::kChunkBytes), jobs);
  check_jobs(make_planes(3, MpiPlane::kChunkBytes), jobs);
}

// When all is done nobody needs this rank to call MPI any more: it asks for no polling, and no
// message is under way.
TEST(an_idle_plane_needs_no_polling) {
  const auto office = std::make_shared<PostOffice>();
  const Planes planes = make_planes(3, kSmallChunk, office);
  for (const auto& plane : planes) CHECK(!plane->polls());
  check_jobs(planes, random_jobs(20, {all_ranks(3)}, 5, kMost));
  for (const auto& plane : planes) CHECK(!plane->polls());
  CHECK_EQ(office->under_way(), 0u);
}

TEST(a_plane_with_works_polls) {
  const Planes planes = make_planes(2, kSmallChunk);
  std::vector<Job> jobs = jobs_of(0, numbered({{.counts = {5000}}}, 2));
  planes[0]->submit(jobs[0].work);
  CHECK(planes[0]->polls());
  planes[0]->abort();
  CHECK(!planes[0]->polls());
}

// A plane that is abandoned in the midst of works leaves messages behind, which the next one on the
// same communicator does not take for its own; and MPI has no pointer to a tensor.
TEST(an_abandoned_plane_leaves_the_next_one_alone) {
  const auto office = std::make_shared<PostOffice>();
  for (unsigned round = 0; round < 8; ++round) {
    const int tag = 10 + 4 * static_cast<int>(round);
    Planes planes = make_planes(3, kSmallChunk, office, tag);
    {
      const auto specs = numbered({{.movement = kMovements[round % 5], .counts = {20'000}}}, 3);
      std::vector<std::vector<Job>> jobs;
      for (int r = 0; r < 3; ++r) jobs.push_back(jobs_of(r, specs));
      for (int r = 0; r < 3; ++r) planes[at(r)]->submit(jobs[at(r)][0].work);
      for (unsigned i = 0; i < 3 * round; ++i) {
        planes[i % 3]->advance([](std::uint64_t, std::size_t) {});
      }
      for (const auto& plane : planes) plane->abort();
    }
    planes.clear();
    check_jobs(make_planes(3, kSmallChunk, office, tag + 2),
               random_jobs(5, {all_ranks(3)}, 3, kMost));
  }
}

TEST(a_message_that_is_too_short_is_refused) {
  const auto office = std::make_shared<PostOffice>();
  const auto plane = make_plane(0, 2, office, kSmallChunk);
  FakeMpi other(1, office);
  const std::vector<std::byte> few(12);
  MessagePassing::Request request = 0;
  CHECK_EQ(other.start_send(few.data(), few.size(), 0, kTag, request), 0);
  std::vector<Job> jobs = jobs_of(0, numbered({{.counts = {5000}}}, 2));
  const Status status = run_jobs(*plane, jobs, {});
  CHECK_EQ(status.message, "data from rank 1 make no sense: 12 bytes came, where 2048 were due");
  plane->abort();
}

TEST(an_error_of_mpi_names_the_peer) {
  const auto office = std::make_shared<PostOffice>();
  const auto plane = make_plane(0, 2, office, kSmallChunk);
  FakeMpi other(1, office);
  const std::vector<std::byte> much(5000);
  MessagePassing::Request request = 0;
  CHECK_EQ(other.start_send(much.data(), much.size(), 0, kTag, request), 0);
  std::vector<Job> jobs = jobs_of(0, numbered({{.counts = {5000}}}, 2));
  const Status status = run_jobs(*plane, jobs, {});
  CHECK_EQ(status.message, "MPI cannot exchange messages with rank 1: message truncated");
  plane->abort();
}

TEST(the_pause_between_questions_grows_with_the_wait) {
  CHECK_EQ(poll_pause(0, 0), 0);
  CHECK_EQ(poll_pause(9 * kMicrosecond, 0), 0);
  CHECK_EQ(poll_pause(79 * kMicrosecond, 80 * kMicrosecond), 0);
  CHECK_EQ(poll_pause(20 * kMicrosecond, 0), 10 * kMicrosecond);
  CHECK_EQ(poll_pause(400 * kMicrosecond, 80 * kMicrosecond), 100 * kMicrosecond);
  CHECK_EQ(poll_pause(kSecond, 0), kMillisecond);
}

}  // namespace khorovod::testing

TEST_MAIN()
