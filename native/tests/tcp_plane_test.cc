// The TCP plane by itself: every movement, borders of chunks, streams that are uneven or empty,
// sets that overlap, slow and late ranks, connections that end or carry nonsense. Ranks are
// threads, or take turns in one thread by a seeded die.
#include "planes/tcp_plane.h"

#include <chrono>
#include <thread>

#include "tests/plane_jobs.h"
#include "tests/tcp_mesh.h"

namespace khorovod::testing {

namespace {

using Planes = std::vector<std::unique_ptr<TcpPlane>>;

constexpr std::size_t kSmallChunk = 4096;  // 1024 floats
constexpr int kSmallBuffers = 4096;

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

MembersRef members_of(std::vector<int> ranks) {
  auto members = std::make_shared<Members>();
  members->set = 1;
  members->ranks = std::move(ranks);
  return members;
}

// Numbers the plans and fills in who takes part.
std::vector<JobSpec> numbered(std::vector<JobSpec> specs, int size) {
  unsigned plan = 0;
  for (JobSpec& spec : specs) {
    spec.seed = ++plan;
    if (spec.members == nullptr) spec.members = all_ranks(size);
  }
  return specs;
}

std::vector<Job> jobs_of(int rank, const std::vector<JobSpec>& specs) {
  std::vector<Job> jobs;
  for (const JobSpec& spec : specs) {
    if (spec.members->contains(rank)) jobs.push_back(make_job(spec, rank, 7 * jobs.size() + 3));
  }
  return jobs;
}

// ---------------------------------------------------------------------------------------------------
// Ranks as threads

struct Pace {
  unsigned seed = 0;
  bool restless = false;  // random pauses, works submitted one by one at random times
};

// Runs the jobs on one plane until all are done or it fails. Sleeps as the engine does, and counts
// the times that the kernel woke it for nothing.
Status run_jobs(DataPlane& plane, std::vector<Job>& jobs, const Pace& pace) {
  std::mt19937 random(pace.seed);
  DoneBook book(jobs);
  std::size_t submitted = 0;
  int in_vain = 0;
  bool woken = false;
  while (!book.complete()) {
    bool news = false;
    while (submitted < jobs.size() && (!pace.restless || random() % 4 == 0)) {
      plane.submit(jobs[submitted++].work);
      news = true;
    }
    if (pace.restless && random() % 8 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    }
    const bool moved = plane.advance(std::ref(book));
    if (!plane.failure().ok()) return plane.failure();
    if (woken && !moved && !news) CHECK(++in_vain < 20);
    woken = false;
    if (moved) continue;
    std::vector<pollfd> fds;
    plane.wanted_fds(fds);
    if (fds.empty()) std::this_thread::yield();
    woken = ::poll(fds.data(), fds.size(), submitted < jobs.size() || fds.empty() ? 0 : 2000) > 0;
  }
  return {};
}

void check_jobs(Planes planes, std::vector<JobSpec> specs, bool restless = false) {
  const int size = static_cast<int>(planes.size());
  specs = numbered(std::move(specs), size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<Job> jobs = jobs_of(rank, specs);
      const Pace pace{static_cast<unsigned>(rank * 31 + size), restless};
      CHECK_EQ(run_jobs(*planes[at(rank)], jobs, pace).message, "");
    });
  }
  for (auto& thread : threads) thread.join();
}

// ---------------------------------------------------------------------------------------------------
// Ranks that take turns

// Some ranks get many turns and some few, and works become known at different times: whatever the
// die says, everything must get done.
void check_by_turns(Planes planes, std::vector<JobSpec> specs, unsigned seed) {
  const int size = static_cast<int>(planes.size());
  specs = numbered(std::move(specs), size);
  std::vector<std::vector<Job>> jobs;
  std::vector<DoneBook> books;
  for (int r = 0; r < size; ++r) jobs.push_back(jobs_of(r, specs));
  for (auto& of_rank : jobs) books.emplace_back(of_rank);
  std::vector<std::size_t> submitted(at(size));
  std::mt19937 random(seed);
  std::vector<unsigned> weights;
  for (int r = 0; r < size; ++r) weights.push_back(1u << random() % 6);
  std::discrete_distribution<int> next(weights.begin(), weights.end());
  auto waited_since = std::chrono::steady_clock::now();
  while (!std::all_of(books.begin(), books.end(), [](auto& book) { return book.complete(); })) {
    const auto r = at(next(random));
    bool moved = submitted[r] < jobs[r].size() && random() % 4 == 0;
    if (moved) planes[r]->submit(jobs[r][submitted[r]++].work);
    moved |= planes[r]->advance(std::ref(books[r]));
    CHECK_EQ(planes[r]->failure().message, "");
    const auto now = std::chrono::steady_clock::now();
    if (moved) waited_since = now;
    CHECK(now - waited_since < std::chrono::seconds(20));
  }
}

// ---------------------------------------------------------------------------------------------------
// Jobs

std::vector<JobSpec> border_jobs(Movement movement, int size) {
  std::vector<JobSpec> jobs;
  for (const std::size_t count :
       {1u, 15u, 16u, 17u, 33u, 1023u, 1024u, 1025u, 2048u, 5000u, 40'961u}) {
    const int root = static_cast<int>(count) % size;
    jobs.push_back({.movement = movement, .counts = {count}, .root = root});
    jobs.push_back({.movement = movement,
                    .counts = {count, 3, count},
                    .in_place = true,
                    .dtype = DType::kInt32,
                    .root = root});
    if (movement != Movement::kAllreduce && movement != Movement::kReducescatter) {
      jobs.push_back({.movement = movement, .counts = {2, count}, .dtype = DType::kUint8});
      continue;
    }
    jobs.push_back({.movement = movement,
                    .counts = {count},
                    .reduction = Reduction::kMin,
                    .prescale = {0.7, 1},
                    .postscale = {1.0, 3}});
    jobs.push_back(
        {.movement = movement, .counts = {7, count}, .in_place = true, .prescale = {3.3, 1}});
  }
  return jobs;
}

// Half precision on the wire of float32 tensors.
std::vector<JobSpec> converted_jobs(int size) {
  std::vector<JobSpec> jobs;
  for (const std::size_t count : {1u, 31u, 33u, 2047u, 2048u, 2049u, 30'001u}) {
    for (const bool in_place : {false, true}) {
      jobs.push_back({.counts = {count, 5, count},
                      .in_place = in_place,
                      .wire = DType::kFloat16,
                      .prescale = {in_place ? 0.5 : 1.0, 1},
                      .postscale = {1.0, size}});
    }
  }
  return jobs;
}

std::vector<JobSpec> random_jobs(std::size_t how_many, const std::vector<MembersRef>& sets,
                                 unsigned seed) {
  constexpr Movement kMovements[] = {Movement::kAllreduce, Movement::kBroadcast,
                                     Movement::kAllgather, Movement::kAlltoall,
                                     Movement::kReducescatter};
  std::mt19937 random(seed);
  std::vector<JobSpec> jobs(how_many);
  for (JobSpec& job : jobs) {
    job.members = sets[random() % sets.size()];
    const int size = job.members->size();
    job.movement = kMovements[random() % 5];
    const std::size_t tensors = 1 + random() % 5;
    for (std::size_t i = 0; i < tensors; ++i) job.counts.push_back(1 + random() % 6000);
    job.in_place = random() % 2 == 0;
    job.root = static_cast<int>(random() % static_cast<unsigned>(size));
    if (job.movement == Movement::kAllreduce && random() % 3 == 0) job.wire = DType::kFloat16;
    if (job.movement != Movement::kAllreduce && job.movement != Movement::kReducescatter) continue;
    if (random() % 3 == 0) job.prescale = {1.25, 1};
    if (random() % 3 == 0) job.postscale = {1.0, size};
  }
  return jobs;
}

void borders(Movement movement) {
  for (const int size : {2, 3, 5}) {
    check_jobs(make_planes(size, kSmallChunk), border_jobs(movement, size));
  }
}

void slow_and_late(int size) {
  check_jobs(make_planes(size, kSmallChunk, kSmallBuffers),
             random_jobs(40, {all_ranks(size)}, static_cast<unsigned>(size)), true);
}

std::vector<MembersRef> overlapping_sets() {
  return {members_of({0, 1}), members_of({1, 2}), members_of({0, 2}), all_ranks(3)};
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
TEST(another_type_on_the_wire_2) { check_jobs(make_planes(2, kSmallChunk), converted_jobs(2)); }
TEST(another_type_on_the_wire_3) { check_jobs(make_planes(3, kSmallChunk), converted_jobs(3)); }
TEST(another_type_on_the_wire_5) { check_jobs(make_planes(5, kSmallChunk), converted_jobs(5)); }
TEST(slow_and_late_ranks_2) { slow_and_late(2); }
TEST(slow_and_late_ranks_3) { slow_and_late(3); }
TEST(slow_and_late_ranks_5) { slow_and_late(5); }

TEST(overlapping_sets_in_threads) {
  check_jobs(make_planes(3, kSmallChunk, kSmallBuffers), random_jobs(80, overlapping_sets(), 1),
             true);
}

TEST(overlapping_sets_by_turns) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    check_by_turns(make_planes(3, kSmallChunk, kSmallBuffers),
                   random_jobs(40, overlapping_sets(), seed), seed);
  }
}

TEST(sets_of_a_larger_world_by_turns) {
  const std::vector<MembersRef> sets = {members_of({0, 1, 2, 3}), members_of({3, 4}),
                                        members_of({0, 2, 4}), members_of({1, 4}), all_ranks(5)};
  for (unsigned seed = 1; seed <= 6; ++seed) {
    check_by_turns(make_planes(5, kSmallChunk, kSmallBuffers), random_jobs(30, sets, seed), seed);
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
