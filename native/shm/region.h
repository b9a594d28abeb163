// A piece of memory that processes share: a sealed memfd, mapped. Nothing is left behind when its
// processes die, and a forked child does not get the mapping.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "base/unique_fd.h"

namespace khorovod {

class ShmRegion {
 public:
  ShmRegion() = default;
  ShmRegion(ShmRegion&& other) noexcept;
  ShmRegion& operator=(ShmRegion&& other) noexcept;
  ~ShmRegion();

  // Makes a zeroed memfd of `size` bytes whose memory is there already: a later access cannot fail.
  static Status create(std::size_t size, UniqueFd& fd);
  // Maps all of `fd`; the descriptor itself is no longer needed afterwards.
  static Status map(int fd, std::size_t size, ShmRegion& region);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace khorovod
