// A one-writer, one-reader byte stream in shared memory: the mailbox between a rank and the
// coordinator. The two counters only grow; both sides check the other's before they trust it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace khorovod {

struct ByteRing {
  static constexpr std::size_t kCapacity = std::size_t{1} << 17;

  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) std::byte data[kCapacity];

  // Both return how many bytes were moved, or -1 if the counters are nonsense.
  std::ptrdiff_t write_some(std::span<const std::byte> bytes) {
    const std::uint64_t head = written.load(std::memory_order_relaxed);
    const std::uint64_t used = head - read.load(std::memory_order_acquire);
    if (used > kCapacity) return -1;
    const std::size_t size = std::min(bytes.size(), static_cast<std::size_t>(kCapacity - used));
    const std::size_t at = head % kCapacity;
    const std::size_t first = std::min(size, kCapacity - at);
    if (size == 0) return 0;
    std::memcpy(data + at, bytes.data(), first);
    std::memcpy(data, bytes.data() + first, size - first);
    written.store(head + size, std::memory_order_release);
    return static_cast<std::ptrdiff_t>(size);
  }

  std::ptrdiff_t read_some(std::span<std::byte> bytes) {
    const std::uint64_t tail = read.load(std::memory_order_relaxed);
    const std::uint64_t used = written.load(std::memory_order_acquire) - tail;
    if (used > kCapacity) return -1;
    const std::size_t size = std::min(bytes.size(), static_cast<std::size_t>(used));
    if (size == 0) return 0;
    const std::size_t at = tail % kCapacity;
    const std::size_t first = std::min(size, kCapacity - at);
    std::memcpy(bytes.data(), data + at, first);
    std::memcpy(bytes.data() + first, data, size - first);
    read.store(tail + size, std::memory_order_release);
    return static_cast<std::ptrdiff_t>(size);
  }
};

}  // namespace khorovod
