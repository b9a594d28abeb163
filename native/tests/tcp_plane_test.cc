// The TCP plane by itself, a thread per rank: borders of chunks, many small tensors, slow and late
// ranks, connections that end, and the same bits as in shared memory.
#include "planes/tcp_plane.h"

#include <atomic>
#include <chrono>
#include <random>

#include "planes/shm_plane.h"
#include "tests/tcp_worlds.h"

namespace khorovod::testing {

namespace {

using Floats = std::vector<float>;
using Planes = std::vector<std::unique_ptr<DataPlane>>;

constexpr std::size_t kSmallChunk = 4096;  // 1024 floats

Planes make_tcp_planes(int size, std::size_t chunk_bytes, int buffer_bytes = 0) {
  Mesh mesh = make_tcp_mesh(size, buffer_bytes);
  Planes planes;
  for (int r = 0; r < size; ++r) {
    std::vector<std::string> names;
    for (int p = 0; p < size; ++p) names.push_back("rank " + std::to_string(p));
    planes.push_back(std::make_unique<TcpPlane>(
        r, size, std::move(mesh[static_cast<std::size_t>(r)]), std::move(names), chunk_bytes));
  }
  return planes;
}

// One work of one rank with the memory it is about.
struct Job {
  Work work;
  std::vector<Floats> in;
  std::vector<Floats> out;  // empty: in place
};

struct JobSpec {
  std::vector<std::size_t> counts;
  bool in_place = false;
  Scale prescale{};
  Scale postscale{};
  int root = -1;  // not a broadcast
};

Floats random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-20.0f, 20.0f);
  Floats values(count);
  for (float& value : values) value = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1 : -1);
  return values;
}

Job make_job(const JobSpec& spec, int rank, unsigned seed) {
  Job job;
  job.work.plan = seed;
  job.work.prescale = spec.prescale;
  job.work.postscale = spec.postscale;
  if (spec.root >= 0) {
    job.work.movement = Movement::kBroadcast;
    job.work.root = spec.root;
  }
  for (std::size_t i = 0; i < spec.counts.size(); ++i) {
    const auto part = static_cast<unsigned>(i) * 64 + static_cast<unsigned>(rank);
    job.in.push_back(random_floats(spec.counts[i], seed * 100'003 + part));
    if (!spec.in_place) job.out.emplace_back(spec.counts[i]);
  }
  for (std::size_t i = 0; i < spec.counts.size(); ++i) {
    auto* in = reinterpret_cast<std::byte*>(job.in[i].data());
    auto* out = spec.in_place ? in : reinterpret_cast<std::byte*>(job.out[i].data());
    job.work.segments.push_back({in, out, spec.counts[i] * sizeof(float)});
    job.work.bytes += spec.counts[i] * sizeof(float);
  }
  return job;
}

// What every rank must find: scaled, summed from rank 0 upwards, scaled.
std::vector<Floats> expected(const JobSpec& spec, int size, unsigned seed) {
  if (spec.root >= 0) return make_job(spec, spec.root, seed).in;
  std::vector<Job> jobs;
  for (int r = 0; r < size; ++r) jobs.push_back(make_job(spec, r, seed));
  std::vector<Floats> totals;
  for (std::size_t i = 0; i < spec.counts.size(); ++i) {
    std::vector<const std::byte*> sources;
    for (Job& job : jobs) {
      auto* data = reinterpret_cast<std::byte*>(job.in[i].data());
      kernels().scale(DType::kFloat32, data, data, spec.counts[i], spec.prescale);
      sources.push_back(data);
    }
    totals.emplace_back(spec.counts[i]);
    kernels().sum(DType::kFloat32, reinterpret_cast<std::byte*>(totals.back().data()),
                  sources.data(), size, spec.counts[i], spec.postscale);
  }
  return totals;
}

// Bits, not values.
bool same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void sleep_us(unsigned microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

struct Pace {
  unsigned seed = 0;
  bool restless = false;  // random pauses, works submitted one by one at random times
};

// Runs the jobs on one plane until all segments are done or it fails. Sleeps as the engine does,
// and counts the times that the kernel woke it for nothing.
Status run_jobs(DataPlane& plane, std::vector<Job>& jobs, const Pace& pace) {
  std::mt19937 random(pace.seed);
  std::size_t left = 0;
  for (const Job& job : jobs) left += job.work.segments.size();
  std::size_t submitted = 0;
  int in_vain = 0;
  bool woken = false;
  while (left > 0) {
    bool news = false;
    while (submitted < jobs.size() && (!pace.restless || random() % 4 == 0)) {
      plane.submit(jobs[submitted++].work);
      news = true;
    }
    if (pace.restless && random() % 8 == 0) sleep_us(static_cast<unsigned>(random() % 500));
    const bool moved = plane.advance([&](std::uint64_t, std::size_t) { --left; });
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

// Runs the same jobs on all ranks and checks every tensor on each.
void check_jobs(Planes planes, const std::vector<JobSpec>& specs, bool restless = false) {
  static std::atomic<unsigned> seeds{1};
  const unsigned first_seed = seeds.fetch_add(static_cast<unsigned>(specs.size()));
  const int size = static_cast<int>(planes.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<Job> jobs;
      for (std::size_t j = 0; j < specs.size(); ++j) {
        jobs.push_back(make_job(specs[j], rank, first_seed + static_cast<unsigned>(j)));
      }
      const Pace pace{first_seed * 31 + static_cast<unsigned>(rank), restless};
      const Status status = run_jobs(*planes[static_cast<std::size_t>(rank)], jobs, pace);
      CHECK_EQ(status.message, "");
      for (std::size_t j = 0; j < specs.size(); ++j) {
        if (specs[j].root == rank) continue;  // the root's output is its input
        const auto& result = specs[j].in_place ? jobs[j].in : jobs[j].out;
        const auto wanted = expected(specs[j], size, first_seed + static_cast<unsigned>(j));
        for (std::size_t i = 0; i < result.size(); ++i) CHECK(same(result[i], wanted[i]));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

std::vector<JobSpec> border_jobs() {
  std::vector<JobSpec> jobs;
  for (const std::size_t count :
       {1u, 15u, 16u, 17u, 33u, 1023u, 1024u, 1025u, 2048u, 5000u, 40'961u}) {
    jobs.push_back({.counts = {count}});
    jobs.push_back({.counts = {count, 3, count}, .in_place = true});
    jobs.push_back({.counts = {count}, .prescale = {0.7, 1}, .postscale = {1.0, 3}});
    jobs.push_back({.counts = {7, count}, .in_place = true, .prescale = {3.3, 1}});
    jobs.push_back({.counts = {count}, .in_place = true, .root = static_cast<int>(count % 2)});
  }
  return jobs;
}

std::vector<JobSpec> random_jobs(int size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<JobSpec> jobs(30);
  for (JobSpec& job : jobs) {
    const std::size_t tensors = 1 + random() % 5;
    for (std::size_t i = 0; i < tensors; ++i) job.counts.push_back(1 + random() % 6000);
    job.in_place = random() % 2 == 0;
    if (random() % 3 == 0) job.prescale = {1.25, 1};
    if (random() % 3 == 0) job.postscale = {1.0, size};
    if (random() % 4 == 0) job.root = static_cast<int>(random() % static_cast<unsigned>(size));
    if (job.root >= 0) job.prescale = job.postscale = {};
  }
  return jobs;
}

void slow_and_late(int size) {
  check_jobs(make_tcp_planes(size, kSmallChunk, 4096),
             random_jobs(size, static_cast<unsigned>(size)), true);
}

Planes make_shm_planes(int size, std::vector<std::unique_ptr<ShmDomain>>& domains) {
  UniqueFd fd;
  CHECK(ShmRegion::create(ShmDomain::bytes_needed(size), fd).ok());
  auto region = std::make_shared<ShmRegion>();
  CHECK(ShmRegion::map(fd.get(), ShmDomain::bytes_needed(size), *region).ok());
  Planes planes;
  for (int r = 0; r < size; ++r) {
    domains.push_back(std::make_unique<ShmDomain>(
        region, r, size, std::vector<int>(static_cast<std::size_t>(size), -1)));
    planes.push_back(std::make_unique<ShmPlane>(*domains.back()));
  }
  return planes;
}

// Both planes against the same reference, whose bits depend on the order of additions.
void same_bits(int size) {
  const std::vector<JobSpec> jobs = {
      {.counts = {300'001}, .prescale = {0.3, 1}, .postscale = {1, size}},
      {.counts = {5, 100'000, 77}, .in_place = true}};
  std::vector<std::unique_ptr<ShmDomain>> domains;
  check_jobs(make_shm_planes(size, domains), jobs);
  check_jobs(make_tcp_planes(size, TcpPlane::kChunkBytes), jobs);
}

}  // namespace

TEST(chunk_borders_2) { check_jobs(make_tcp_planes(2, kSmallChunk), border_jobs()); }
TEST(chunk_borders_3) { check_jobs(make_tcp_planes(3, kSmallChunk), border_jobs()); }
TEST(chunk_borders_4) { check_jobs(make_tcp_planes(4, kSmallChunk), border_jobs()); }
TEST(chunk_borders_5) { check_jobs(make_tcp_planes(5, kSmallChunk), border_jobs()); }
TEST(slow_and_late_ranks_2) { slow_and_late(2); }
TEST(slow_and_late_ranks_3) { slow_and_late(3); }
TEST(slow_and_late_ranks_4) { slow_and_late(4); }
TEST(slow_and_late_ranks_5) { slow_and_late(5); }
TEST(same_bits_as_in_shared_memory_2) { same_bits(2); }
TEST(same_bits_as_in_shared_memory_3) { same_bits(3); }
TEST(same_bits_as_in_shared_memory_4) { same_bits(4); }

TEST(more_small_tensors_than_one_call_takes) {
  JobSpec many{.counts = std::vector<std::size_t>(3000), .in_place = true};
  for (std::size_t i = 0; i < many.counts.size(); ++i) many.counts[i] = 1 + i % 50;
  JobSpec sent = many;
  sent.root = 1;
  check_jobs(make_tcp_planes(3, TcpPlane::kChunkBytes), {many, sent, many});
}

TEST(whole_chunks_of_the_real_size) {
  check_jobs(make_tcp_planes(2, TcpPlane::kChunkBytes),
             {{.counts = {3'000'000}, .in_place = true}, {.counts = {3'000'000}, .root = 0}});
}

TEST(a_rank_that_ends_midway_is_named_by_the_others) {
  for (unsigned round = 0; round < 20; ++round) {
    Planes planes = make_tcp_planes(3, kSmallChunk, 4096);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto& plane = planes[static_cast<std::size_t>(rank)];
        std::vector<Job> jobs;
        jobs.push_back(make_job({.counts = {200'000}, .in_place = true}, rank, 1));
        if (rank == 1) {
          plane->submit(jobs[0].work);
          for (unsigned i = 0; i < round * 5; ++i)
            plane->advance([](std::uint64_t, std::size_t) {});
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

TEST(a_rank_may_go_when_it_has_done_its_part) {
  Planes planes = make_tcp_planes(3, kSmallChunk);
  const JobSpec spec{.counts = {5000}, .in_place = true, .root = 0};
  std::vector<std::vector<Job>> jobs(3);
  for (int r = 0; r < 3; ++r) jobs[static_cast<std::size_t>(r)].push_back(make_job(spec, r, 9));
  CHECK(run_jobs(*planes[0], jobs[0], {}).ok());  // the kernel's buffers take it all
  planes[0].reset();
  for (const std::size_t r : {1u, 2u}) {
    CHECK_EQ(run_jobs(*planes[r], jobs[r], {}).message, "");
    CHECK(same(jobs[r][0].in[0], jobs[0][0].in[0]));
  }
}

TEST(bytes_that_make_no_sense_are_refused) {
  Mesh mesh = make_tcp_mesh(2);
  TcpPlane plane(0, 2, std::move(mesh[0]), {"", "rank 1"}, kSmallChunk);
  const std::uint32_t header[2] = {0, 12345};
  CHECK_EQ(::send(mesh[1][0].get(), header, sizeof header, 0), ssize_t{sizeof header});
  std::vector<Job> jobs;
  jobs.push_back(make_job({.counts = {5000}}, 0, 1));
  const Status status = run_jobs(plane, jobs, {});
  CHECK(status.code == Code::kInternal);
  CHECK(status.message.find("rank 1") != std::string::npos);
}

}  // namespace khorovod::testing

TEST_MAIN()
