// Messages over a byte stream: four bytes of length, then the message. Keeps what the stream does
// not take yet, and what has arrived of a message that is not complete.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "base/wire.h"

namespace khorovod {

inline constexpr std::uint32_t kMaxFrameBytes = std::uint32_t{256} << 20;

class FrameWriter {
 public:
  // `write` takes bytes and returns how many it took, or -1 if the stream is broken.
  template <typename Write>
  bool send(Bytes message, Write write) {
    // What is too long to be said is refused by the other side, not taken for something else.
    const auto size = static_cast<std::uint32_t>(std::min<std::size_t>(message.size(), UINT32_MAX));
    const auto old = kept_.size();
    kept_.resize(old + sizeof size + message.size());
    std::memcpy(kept_.data() + old, &size, sizeof size);
    if (!message.empty()) {
      std::memcpy(kept_.data() + old + sizeof size, message.data(), message.size());
    }
    return flush(write) >= 0;
  }

  // How many bytes went out, or -1.
  template <typename Write>
  std::ptrdiff_t flush(Write write) {
    std::ptrdiff_t total = 0;
    while (sent_ < kept_.size()) {
      const std::ptrdiff_t n = write(Bytes(kept_).subspan(sent_));
      if (n < 0) return -1;
      if (n == 0) break;
      sent_ += static_cast<std::size_t>(n);
      total += n;
    }
    if (sent_ == kept_.size()) {
      kept_.clear();
      sent_ = 0;
    }
    return total;
  }

  bool backlog() const { return sent_ < kept_.size(); }

 private:
  std::vector<std::byte> kept_;
  std::size_t sent_ = 0;
};

class FrameReader {
 public:
  // Reads what there is with `read` (how many bytes, 0: nothing now, -1: broken) and hands every
  // complete message to `message`, which returns false for one that makes no sense.
  // Returns how many bytes came, or -1.
  template <typename Read, typename Message>
  std::ptrdiff_t receive(Read read, Message message) {
    std::ptrdiff_t total = 0;
    for (;;) {
      if (buffer_.size() - filled_ < kReadBytes) buffer_.resize(filled_ + kReadBytes);
      const std::ptrdiff_t n = read(std::span<std::byte>(buffer_).subspan(filled_));
      if (n < 0) return -1;
      if (n == 0) return total;
      filled_ += static_cast<std::size_t>(n);
      total += n;
      if (!take_messages(message)) return -1;
    }
  }

 private:
  static constexpr std::size_t kReadBytes = 64 << 10;

  template <typename Message>
  bool take_messages(Message message) {
    std::size_t at = 0;
    std::uint32_t size = 0;
    while (filled_ - at >= sizeof size) {
      std::memcpy(&size, buffer_.data() + at, sizeof size);
      if (size > kMaxFrameBytes) return false;
      if (filled_ - at - sizeof size < size) break;
      if (!message(Bytes(buffer_).subspan(at + sizeof size, size))) return false;
      at += sizeof size + size;
    }
    if (at > 0) std::memmove(buffer_.data(), buffer_.data() + at, filled_ - at);
    filled_ -= at;
    return true;
  }

  std::vector<std::byte> buffer_;  // its first filled_ bytes are not yet handed on
  std::size_t filled_ = 0;
};

}  // namespace khorovod
