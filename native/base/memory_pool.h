// Memory for results. Touching fresh pages for the first time costs more than a reduction, so the
// memory of a large result that is gone is kept for the next one of its size, and what must be
// fresh is asked for in huge pages. A forked child may let go of results, and gets no use of the
// pool: another thread may have had its lock.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fork_guard.h"

namespace khorovod {

class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  // At most `most` bytes are kept.
  explicit MemoryPool(std::size_t most = std::size_t{64} << 20) : most_(most) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // Memory that goes back to the pool when its last owner lets go of it; null if there is none.
  // From any thread.
  std::shared_ptr<std::byte> take(std::size_t bytes);

 private:
  struct Block {
    std::byte* memory;
    std::size_t bytes;
  };

  void give_back(Block block);

  const ForkGuard fork_guard_;
  const std::size_t most_;
  std::mutex mutex_;
  std::vector<Block> kept_;     // the last used at the end; guarded by mutex_
  std::size_t kept_bytes_ = 0;  // guarded by mutex_
};

}  // namespace khorovod
