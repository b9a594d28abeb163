// Every reader of another process's bytes gets valid messages that were changed, cut and mixed: it
// refuses or understands them, touches nothing else (the sanitizers look), and makes no more memory
// than a multiple of what came. Seeded: the same inputs every time.
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "fuzz/targets.h"
#include "tests/check.h"

namespace {
std::atomic<std::size_t> largest{0};  // allocation since it was reset
}

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  std::size_t seen = largest.load(std::memory_order_relaxed);
  while (size > seen && !largest.compare_exchange_weak(seen, size)) {
  }
  return std::malloc(size);
}
void* operator new(std::size_t size) {
  if (void* memory = ::operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace khorovod::fuzz {

namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t limit) {
  return limit == 0 ? 0 : static_cast<std::size_t>(random() % limit);
}

// Values that lengths, counts and ids go wrong at.
std::byte interesting(Random& random) {
  constexpr std::uint8_t values[] = {0, 1, 2, 3, 0x7f, 0x80, 0x81, 0xfe, 0xff, 64};
  return static_cast<std::byte>(values[below(random, sizeof values)]);
}

Input mutated(Random& random, Input input, const std::vector<Input>& seeds) {
  for (std::size_t changes = 1 + below(random, 4); changes > 0; --changes) {
    const std::size_t at = below(random, input.size());
    const auto here = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(random, 7)) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<std::byte>(1U << below(random, 8));
        break;
      case 1:
        if (!input.empty()) input[at] = interesting(random);
        break;
      case 2:
        input.insert(here, 1 + below(random, 9), interesting(random));
        break;
      case 3:
        input.erase(here, here + static_cast<std::ptrdiff_t>(below(random, input.size() - at)));
        break;
      case 4:
        input.resize(at);
        break;
      case 5: {  // a piece of another message
        const Input& other = seeds[below(random, seeds.size())];
        const std::size_t from = below(random, other.size());
        const std::size_t length = below(random, other.size() - from + 1);
        input.insert(here, other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + length));
        break;
      }
      default: {  // a whole one
        const Input& other = seeds[below(random, seeds.size())];
        input.insert(input.end(), other.begin(), other.end());
      }
    }
    if (input.size() > 4096) input.resize(4096);
  }
  return input;
}

void run_checked(const Target& target, const Input& input) {
  largest.store(0);
  target.run(input);
  if (!target.parses) return;
  if (largest.load() <= most_memory(input.size())) return;
  testing::fail(__FILE__, __LINE__,
                std::string(target.name) + ": " + std::to_string(largest.load()) +
                    " bytes of memory for " + std::to_string(input.size()) + " bytes");
}

void run_mutations(const char* name, int rounds) {
  for (const Target& target : targets()) {
    if (std::string(target.name) != name) continue;
    const std::vector<Input> seeds = target.seeds();
    for (const Input& seed : seeds) run_checked(target, seed);
    Random random(20240229);
    for (int i = 0; i < rounds; ++i) {
      run_checked(target, mutated(random, seeds[below(random, seeds.size())], seeds));
    }
    return;
  }
  CHECK(!"there is no such target");
}

TEST(control_connection) { run_mutations("link", 4000); }
TEST(announcements) { run_mutations("coordinator", 20000); }
TEST(decisions) { run_mutations("decisions", 40000); }
TEST(traces) { run_mutations("traces", 40000); }
TEST(engine_of_a_rank) { run_mutations("engine", 4000); }
TEST(data_connection) { run_mutations("plane", 4000); }

// A length, a count and a list that promise more than there is.
TEST(promises_cost_nothing) {
  for (const Target& target : targets()) {
    if (!target.parses) continue;
    for (const unsigned tag : {0U, 1U, 2U, 3U, 4U, 9U}) {
      Writer out;
      out.u8(static_cast<std::uint8_t>(tag));
      for (int i = 0; i < 6; ++i) out.varint(std::uint64_t{1} << (8 * i + 7));
      run_checked(target, {out.view().begin(), out.view().end()});
    }
  }
}

}  // namespace

}  // namespace khorovod::fuzz

TEST_MAIN()
