// The pool of results: memory comes back, not more than allowed is kept, and a child that was
// forked while threads use the pool can let go of what it has.
#include "base/memory_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/check.h"

namespace khorovod::testing {

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

TEST(large_memory_comes_back) {
  const auto pool = std::make_shared<MemoryPool>();
  const std::byte* first = pool->take(2 * kMiB).get();  // let go of at once
  const auto again = pool->take(2 * kMiB);
  CHECK(again.get() == first);
  const auto other = pool->take(2 * kMiB);
  CHECK(other.get() != first);
}

TEST(memory_outlives_its_pool) {
  auto pool = std::make_shared<MemoryPool>();
  const auto memory = pool->take(kMiB);
  pool.reset();
  memory.get()[kMiB - 1] = std::byte{1};
}

TEST(no_more_is_kept_than_allowed) {
  const auto pool = std::make_shared<MemoryPool>(3 * kMiB);
  const std::byte* oldest;
  {
    const auto a = pool->take(2 * kMiB);
    const auto b = pool->take(kMiB);
    oldest = a.get();
  }
  pool->take(kMiB + 1);  // the oldest goes, and nobody may touch it any more
  CHECK(oldest != nullptr);
}

TEST(children_let_go_while_threads_of_the_parent_use_the_pool) {
  // Its allocator (GCC 12's) is not made for this: a child may wait for a lock of a thread that it
  // does not have. libc's is, and ThreadSanitizer's.
  if (kAddressSanitizer) return;
  const auto pool = std::make_shared<MemoryPool>();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) pool->take(kMiB);
    });
  }
  auto memory = pool->take(kMiB);
  for (int i = 0; i < 200; ++i) {
    const pid_t child = ::fork();
    CHECK(child >= 0);
    if (child == 0) {
      ::alarm(60);  // ends a child that waits for a lock
      memory.reset();
      ::_exit(pool->take(kMiB) != nullptr ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(::waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
  stop.store(true, std::memory_order_relaxed);
  for (auto& thread : threads) thread.join();
}

}  // namespace khorovod::testing

TEST_MAIN()
