// Copying between tensors and the slots that they travel through.
//
// Not memcpy: for more than a few KiB libc's uses `rep movsb`, which on some processors (AMD's Zen
// 3 and 4) is 16 times slower where the target is a little behind the source modulo 4 KiB. Slots
// begin with a page, and what malloc gives for large arrays is 16 bytes behind the begin of one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace khorovod {

namespace detail {

#if defined(__x86_64__)
template <typename Store>
void copy_lines(std::byte* dst, const std::byte* src, std::size_t bytes, Store store) {
  constexpr std::size_t kLine = 64;
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(dst) % kLine;
  const std::size_t head = std::min(bytes, (kLine - offset) % kLine);
  std::memcpy(dst, src, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(src + at);
    auto* to = reinterpret_cast<__m128i*>(dst + at);
    const __m128i line[4] = {_mm_loadu_si128(from), _mm_loadu_si128(from + 1),
                             _mm_loadu_si128(from + 2), _mm_loadu_si128(from + 3)};
    for (int i = 0; i < 4; ++i) store(to + i, line[i]);
  }
  std::memcpy(dst + at, src + at, bytes - at);
}
#endif

}  // namespace detail

inline void cached_copy(std::byte* dst, const std::byte* src, std::size_t bytes) {
#if defined(__x86_64__)
  detail::copy_lines(dst, src, bytes, [](__m128i* to, __m128i line) { _mm_store_si128(to, line); });
#else
  std::memcpy(dst, src, bytes);
#endif
}

// Past the cache: for memory that nobody reads again soon, it saves reading what is overwritten, a
// third of the traffic.
inline void stream_copy(std::byte* dst, const std::byte* src, std::size_t bytes) {
#if defined(__x86_64__)
  detail::copy_lines(dst, src, bytes,
                     [](__m128i* to, __m128i line) { _mm_stream_si128(to, line); });
  _mm_sfence();  // such stores are not ordered with others
#else
  std::memcpy(dst, src, bytes);
#endif
}

}  // namespace khorovod
