#include "shm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace khorovod {

namespace {
Status system_error(const std::string& what) {
  return Status::error(Code::kInternal, what + ": " + std::strerror(errno));
}

std::string mebibytes(std::size_t bytes) {
  return std::to_string((bytes + 0xfffff) >> 20) + " MiB";
}
}  // namespace

ShmRegion::ShmRegion(ShmRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

ShmRegion& ShmRegion::operator=(ShmRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ShmRegion::~ShmRegion() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Status ShmRegion::create(std::size_t size, UniqueFd& fd) {
  UniqueFd made(::memfd_create("khorovod", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made) return system_error("memfd_create");
  // Beyond the limit the kernel does not only refuse: it sends SIGXFSZ, which kills.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size) {
    return Status::error(Code::kInternal, "the limit of file sizes (ulimit -f) is " +
                                              std::to_string(limit.rlim_cur >> 10) +
                                              " KiB, shared memory needs " + mebibytes(size));
  }
  if (::ftruncate(made.get(), static_cast<off_t>(size)) != 0) return system_error("ftruncate");
  // Without this, running out of memory would be a SIGBUS in the middle of a reduction.
  if (::fallocate(made.get(), 0, 0, static_cast<off_t>(size)) != 0) {
    return system_error("cannot reserve " + mebibytes(size) + " of shared memory");
  }
  if (::fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return system_error("sealing shared memory");
  }
  fd = std::move(made);
  return {};
}

Status ShmRegion::map(int fd, std::size_t size, ShmRegion& region) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return system_error("fstat");
  if (static_cast<std::size_t>(info.st_size) != size) {
    return Status::error(Code::kInternal, "a shared-memory region has an unexpected size");
  }
  // A descriptor from another process that could still shrink would be a SIGBUS at its owner's
  // whim.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status::error(Code::kInternal, "a shared-memory region is not sealed");
  }
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return system_error("cannot map " + mebibytes(size));
  ::madvise(data, size, MADV_DONTFORK);
  region = ShmRegion();
  region.data_ = static_cast<std::byte*>(data);
  region.size_ = size;
  return {};
}

}  // namespace khorovod
