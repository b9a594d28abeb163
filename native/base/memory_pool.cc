#include "base/memory_pool.h"

#include <sys/mman.h>

#include <cstdlib>

namespace khorovod {

namespace {

constexpr std::size_t kSmallest = std::size_t{1} << 20;  // below, allocating is quick
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::byte* allocate(std::size_t bytes) {
  const bool huge = bytes >= 2 * kHugePage;
  const std::size_t alignment = huge ? kHugePage : 64;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  // Only advice: without huge pages it is merely slower.
  if (memory != nullptr && huge) ::madvise(memory, rounded, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

MemoryPool::~MemoryPool() {
  if (fork_guard_.in_child()) return;
  for (const Block& block : kept_) std::free(block.memory);
}

std::shared_ptr<std::byte> MemoryPool::take(std::size_t bytes) {
  Block block{nullptr, bytes};
  if (bytes >= kSmallest && !fork_guard_.in_child()) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = kept_.size(); i-- > 0;) {
      if (kept_[i].bytes != bytes) continue;
      block = kept_[i];
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_bytes_ -= bytes;
      break;
    }
  }
  if (block.memory == nullptr) block.memory = allocate(bytes);
  if (block.memory == nullptr) return nullptr;
  return {block.memory, [pool = shared_from_this(), block](std::byte*) { pool->give_back(block); }};
}

void MemoryPool::give_back(Block block) {
  if (fork_guard_.in_child()) {
    std::free(block.memory);
    return;
  }
  std::vector<Block> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (block.bytes < kSmallest || block.bytes > most_) {
      dropped.push_back(block);
    } else {
      kept_.push_back(block);
      kept_bytes_ += block.bytes;
      while (kept_bytes_ > most_) {
        dropped.push_back(kept_.front());
        kept_bytes_ -= kept_.front().bytes;
        kept_.erase(kept_.begin());
      }
    }
  }
  for (const Block& old : dropped) std::free(old.memory);
}

}  // namespace khorovod
