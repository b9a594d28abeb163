// Works run on the planes of all ranks of a world, which are threads, or take turns in one thread
// by a seeded die; and works to run. Knows no plane in particular.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "tests/plane_jobs.h"

namespace khorovod::testing {

using Planes = std::vector<std::unique_ptr<DataPlane>>;  // by rank

inline MembersRef members_of(std::vector<int> ranks) {
  auto members = std::make_shared<Members>();
  members->set = 1;
  members->ranks = std::move(ranks);
  return members;
}

// Numbers the plans and fills in who takes part.
inline std::vector<JobSpec> numbered(std::vector<JobSpec> specs, int size) {
  unsigned plan = 0;
  for (JobSpec& spec : specs) {
    spec.seed = ++plan;
    if (spec.members == nullptr) spec.members = all_ranks(size);
  }
  return specs;
}

inline std::vector<Job> jobs_of(int rank, const std::vector<JobSpec>& specs) {
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

// Runs the jobs on one plane until all are done or it fails. Where the plane waits for sockets,
// sleeps as the engine does, and counts the times that the kernel woke it for nothing.
inline Status run_jobs(DataPlane& plane, std::vector<Job>& jobs, const Pace& pace) {
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
    if (fds.empty()) {
      std::this_thread::yield();
      continue;
    }
    woken = ::poll(fds.data(), fds.size(), submitted < jobs.size() ? 0 : 2000) > 0;
  }
  return {};
}

inline void check_jobs(const Planes& planes, std::vector<JobSpec> specs, bool restless = false) {
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
inline void check_by_turns(const Planes& planes, std::vector<JobSpec> specs, unsigned seed) {
  if (kThreadSanitizer) return;  // one thread: minutes for nothing that it could see
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

constexpr Movement kMovements[] = {Movement::kAllreduce, Movement::kBroadcast, Movement::kAllgather,
                                   Movement::kAlltoall, Movement::kReducescatter};

inline bool reduces(Movement movement) {
  return movement == Movement::kAllreduce || movement == Movement::kReducescatter;
}

inline std::vector<JobSpec> border_jobs(Movement movement, int size,
                                        const std::vector<std::size_t>& borders) {
  std::vector<JobSpec> jobs;
  for (const std::size_t count : borders) {
    const int root = static_cast<int>(count) % size;
    jobs.push_back({.movement = movement, .counts = {count}, .root = root});
    jobs.push_back({.movement = movement,
                    .counts = {count, 3, count},
                    .in_place = true,
                    .dtype = DType::kInt32,
                    .root = root});
    if (!reduces(movement)) {
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
inline std::vector<JobSpec> converted_jobs(int size, const std::vector<std::size_t>& borders) {
  std::vector<JobSpec> jobs;
  for (const std::size_t count : borders) {
    for (const bool in_place : {false, true}) {
      for (const Movement movement : {Movement::kAllreduce, Movement::kReducescatter}) {
        jobs.push_back({.movement = movement,
                        .counts = {count, 5, count},
                        .in_place = in_place,
                        .wire = DType::kFloat16,
                        .prescale = {in_place ? 0.5 : 1.0, 1},
                        .postscale = {1.0, size}});
      }
    }
  }
  return jobs;
}

// Tensors of up to `most` elements.
inline std::vector<JobSpec> random_jobs(std::size_t how_many, const std::vector<MembersRef>& sets,
                                        unsigned seed, std::size_t most) {
  std::mt19937 random(seed);
  std::vector<JobSpec> jobs(how_many);
  for (JobSpec& job : jobs) {
    job.members = sets[random() % sets.size()];
    const int size = job.members->size();
    job.movement = kMovements[random() % 5];
    const std::size_t tensors = 1 + random() % 5;
    for (std::size_t i = 0; i < tensors; ++i) job.counts.push_back(1 + random() % most);
    job.in_place = random() % 2 == 0;
    job.root = static_cast<int>(random() % static_cast<unsigned>(size));
    if (!reduces(job.movement)) continue;
    if (random() % 3 == 0) job.wire = DType::kFloat16;
    if (random() % 3 == 0) job.prescale = {1.25, 1};
    if (random() % 3 == 0) job.postscale = {1.0, size};
  }
  return jobs;
}

// Of a world of three or more: sets that have a rank in common and sets that have none.
inline std::vector<MembersRef> overlapping_sets(int size) {
  if (size == 3) return {members_of({0, 1}), members_of({1, 2}), members_of({0, 2}), all_ranks(3)};
  if (size == 4) {
    return {members_of({0, 1}), members_of({2, 3}), members_of({0, 2}), members_of({1, 2, 3}),
            all_ranks(4)};
  }
  CHECK_EQ(size, 5);
  return {members_of({0, 1, 2, 3}), members_of({3, 4}), members_of({0, 2, 4}), members_of({1, 4}),
          all_ranks(5)};
}

}  // namespace khorovod::testing
