// The shared-memory plane by itself: every movement, borders of chunks, more chunks than slots,
// streams that are uneven or empty, rings of slots that wrap, sets that overlap. Ranks are threads,
// or take turns in one thread by a seeded die.
#include "planes/shm_plane.h"

#include <sys/eventfd.h>

#include "tests/plane_runs.h"

namespace khorovod::testing {

namespace {

// All ranks on one mapping of one region, so that ThreadSanitizer sees every access.
struct ShmRanks {
  explicit ShmRanks(int size) {
    UniqueFd fd;
    CHECK(ShmRegion::create(ShmDomain::bytes_needed(size), fd).ok());
    auto region = std::make_shared<ShmRegion>();
    CHECK(ShmRegion::map(fd.get(), ShmDomain::bytes_needed(size), *region).ok());
    std::vector<int> eventfds;
    for (int r = 0; r < size; ++r) {
      wakes.emplace_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
      eventfds.push_back(wakes.back().get());
    }
    for (int r = 0; r < size; ++r) {
      domains.push_back(std::make_unique<ShmDomain>(region, r, size, eventfds));
      planes.push_back(std::make_unique<ShmPlane>(*domains.back()));
    }
  }

  std::vector<UniqueFd> wakes;
  std::vector<std::unique_ptr<ShmDomain>> domains;
  Planes planes;
};

// Elements of a stream that a chunk takes.
std::size_t chunk_of(Movement movement, int size, DType wire) {
  const std::size_t bytes =
      goes_apart(movement) ? place_bytes(movement, kSlotBytes, size) : kSlotBytes;
  return bytes / dtype_size(wire);
}

void borders(Movement movement) {
  for (const int size : {2, 3, 5}) {
    const std::size_t chunk = chunk_of(movement, size, DType::kFloat32);
    const std::size_t more_than_slots = (slots_per_rank(size) + 1) * chunk + 5;
    check_jobs(ShmRanks(size).planes,
               border_jobs(movement, size,
                           {1, 15, 16, 17, 33, chunk - 1, chunk, chunk + 1, more_than_slots}));
  }
}

void another_type_on_the_wire(int size) {
  std::vector<std::size_t> counts = {1, 31, 33};
  for (const Movement movement : {Movement::kAllreduce, Movement::kReducescatter}) {
    const std::size_t chunk = chunk_of(movement, size, DType::kFloat16);
    counts.insert(counts.end(), {chunk - 1, chunk, chunk + 1, 5 * chunk + 3});
  }
  check_jobs(ShmRanks(size).planes, converted_jobs(size, counts));
}

std::vector<MembersRef> sets_of(int size) {
  if (size == 2) return {all_ranks(2)};
  return overlapping_sets(size);
}

constexpr std::size_t kTiny = 40;
constexpr std::size_t kLarge = 40'000;  // of several tensors: a few chunks

void in_threads(int size) {
  const auto seed = static_cast<unsigned>(size);
  check_jobs(ShmRanks(size).planes, random_jobs(600, sets_of(size), seed, kTiny));
  check_jobs(ShmRanks(size).planes, random_jobs(60, sets_of(size), seed, kTiny), true);
  check_jobs(ShmRanks(size).planes, random_jobs(30, sets_of(size), seed, kLarge), true);
}

void by_turns(int size) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    check_by_turns(ShmRanks(size).planes, random_jobs(300, sets_of(size), seed, kTiny), seed);
    check_by_turns(ShmRanks(size).planes, random_jobs(12, sets_of(size), seed, kLarge), seed);
  }
}

// Runs of works that most ranks publish nothing of, as long as the rings of slots and beyond, among
// works that everybody publishes something of.
std::vector<JobSpec> silent_jobs(int size) {
  std::vector<JobSpec> jobs;
  for (const std::size_t silent : {1u, 3u, 4u, 5u, 7u, 8u, 9u, 17u}) {
    for (std::size_t i = 0; i < silent; ++i) {
      const int root = static_cast<int>(silent) % size;
      jobs.push_back({.movement = Movement::kBroadcast, .counts = {20 + i}, .root = root});
    }
    jobs.push_back({.counts = {silent}});
    for (std::size_t i = 0; i < silent; ++i) {
      jobs.push_back({.movement = Movement::kAllgather, .counts = {1}});  // often nothing of a rank
      jobs.push_back({.movement = Movement::kAlltoall, .counts = {1}});
    }
    jobs.push_back({.movement = Movement::kReducescatter, .counts = {silent, 50}});
    jobs.push_back({.movement = Movement::kReducescatter, .counts = {50}, .wire = DType::kFloat16});
    // All chunks of one work, one chunk of the next.
    jobs.push_back({.movement = Movement::kBroadcast, .counts = {silent * 20'000}, .root = 1});
    jobs.push_back({.counts = {70'000}, .in_place = true});
  }
  return jobs;
}

void silent_ranks(int size) {
  check_jobs(ShmRanks(size).planes, silent_jobs(size));
  for (unsigned seed = 1; seed <= 3; ++seed) {
    check_by_turns(ShmRanks(size).planes, silent_jobs(size), seed);
  }
}

// Rank 0 waits for rank 2, which is late, while rank 1 is done with all that it shares with rank 0:
// what rank 0 has put into its slots is still needed by rank 0 itself.
void one_rank_is_late(const std::vector<JobSpec>& shared) {
  const ShmRanks ranks(3);
  std::vector<JobSpec> specs = {
      {.movement = Movement::kBroadcast, .counts = {10}, .members = members_of({0, 2}), .root = 1}};
  for (const JobSpec& spec : shared) {
    specs.push_back(spec);
    specs.back().members = members_of({0, 1});
  }
  specs = numbered(std::move(specs), 3);
  std::vector<std::vector<Job>> jobs;
  std::vector<DoneBook> books;
  for (int r = 0; r < 3; ++r) jobs.push_back(jobs_of(r, specs));
  for (auto& of_rank : jobs) books.emplace_back(of_rank);
  const auto advance = [&](std::size_t r) { return ranks.planes[r]->advance(std::ref(books[r])); };
  for (std::size_t r = 0; r < 2; ++r) {
    for (const Job& job : jobs[r]) ranks.planes[r]->submit(job.work);
  }
  for (bool moved = true; moved;) {
    moved = advance(0);
    moved |= advance(1);
  }
  ranks.planes[2]->submit(jobs[2][0].work);
  while (!books[0].complete() || !books[1].complete() || !books[2].complete()) {
    bool moved = false;
    for (std::size_t r = 0; r < 3; ++r) moved |= advance(r);
    CHECK(moved);
  }
}

// How many of the copies of two periods go past the cache if they take that many nanoseconds a
// byte.
int copies_past_cache(double through, double past, std::size_t bytes = kSlotBytes) {
  CopyChoice choice;
  int counted = 0;
  for (unsigned i = 0; i < 2 * CopyChoice::kPeriod; ++i) {
    const bool chosen = choice.past_cache();
    counted += chosen;
    choice.took(bytes, static_cast<Nanoseconds>((chosen ? past : through) * double(bytes)));
  }
  return counted;
}

}  // namespace

TEST(copies_go_the_way_that_is_quicker) {
  constexpr int kTried = CopyChoice::kTrials;  // of two periods, half of them past the cache
  CHECK_EQ(copies_past_cache(0.03, 0.05), kTried);
  CHECK_EQ(copies_past_cache(0.09, 0.05), kTried);  // not by enough: the reader pays for it
  CHECK_EQ(copies_past_cache(0.20, 0.05), 2 * int(CopyChoice::kPeriod) - kTried);
  CHECK_EQ(copies_past_cache(0.20, 0.05, CopyChoice::kSmallest - 1), 0);
}

TEST(one_disturbed_copy_of_each_kind_decides_nothing) {
  CopyChoice choice;
  for (const Nanoseconds time : {900'000, 900'000, 26'000, 6'000}) {
    choice.took(kSlotBytes, time);
  }
  CHECK(choice.past_cache());
}

TEST(allreduce_at_borders) { borders(Movement::kAllreduce); }
TEST(broadcast_at_borders) { borders(Movement::kBroadcast); }
TEST(allgather_at_borders) { borders(Movement::kAllgather); }
TEST(alltoall_at_borders) { borders(Movement::kAlltoall); }
TEST(reducescatter_at_borders) { borders(Movement::kReducescatter); }
TEST(another_type_on_the_wire_2) { another_type_on_the_wire(2); }
TEST(another_type_on_the_wire_3) { another_type_on_the_wire(3); }
TEST(another_type_on_the_wire_5) { another_type_on_the_wire(5); }
TEST(silent_ranks_2) { silent_ranks(2); }
TEST(silent_ranks_3) { silent_ranks(3); }
TEST(silent_ranks_5) { silent_ranks(5); }
TEST(sets_in_threads_2) { in_threads(2); }
TEST(sets_in_threads_3) { in_threads(3); }
TEST(sets_in_threads_4) { in_threads(4); }
TEST(sets_in_threads_5) { in_threads(5); }
TEST(sets_by_turns_2) { by_turns(2); }
TEST(sets_by_turns_3) { by_turns(3); }
TEST(sets_by_turns_4) { by_turns(4); }
TEST(sets_by_turns_5) { by_turns(5); }

TEST(a_slot_stays_until_all_others_have_read_it) {
  for (const Movement movement : kMovements) {
    one_rank_is_late(std::vector<JobSpec>(20, {.movement = movement, .counts = {100}}));
  }
}

TEST(a_slot_stays_until_its_own_rank_has_read_it) {
  for (const Movement movement : {Movement::kAllreduce, Movement::kReducescatter}) {
    one_rank_is_late(
        std::vector<JobSpec>(20, {.movement = movement, .counts = {100}, .wire = DType::kFloat16}));
  }
}

// As above, but it is not the slot that comes round, only the lane's place that tells of it.
TEST(what_slot_it_was_stays_known) {
  std::vector<JobSpec> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(
        {.movement = Movement::kReducescatter, .counts = {100}, .wire = DType::kFloat16});
    for (int k = 0; k < 7; ++k) {
      jobs.push_back({.movement = Movement::kBroadcast, .counts = {10}, .root = 1});
    }
  }
  one_rank_is_late(jobs);
}

}  // namespace khorovod::testing

TEST_MAIN()
