// Tells whether this process is a fork of the one that made the guard. The page is wiped by the
// kernel in every child, so there is no handler to install and no pid to compare.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace khorovod {

class ForkGuard {
 public:
  ForkGuard() : pid_(::getpid()) {
    void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (::madvise(page, kPage, MADV_WIPEONFORK) != 0) {
      ::munmap(page, kPage);
      return;
    }
    alive_ = static_cast<volatile std::uint8_t*>(page);
    *alive_ = 1;
  }
  ~ForkGuard() {
    if (alive_ != nullptr) ::munmap(const_cast<std::uint8_t*>(alive_), kPage);
  }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool in_child() const { return alive_ != nullptr ? *alive_ == 0 : ::getpid() != pid_; }

 private:
  static constexpr std::size_t kPage = 4096;
  volatile std::uint8_t* alive_ = nullptr;  // null where the kernel cannot wipe: compare pids
  pid_t pid_;
};

}  // namespace khorovod
