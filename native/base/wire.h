// Reading and writing control messages: varints, little-endian words, byte strings. The reader
// never looks past its bytes; after the first bad field it stays failed and returns zeros.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace khorovod {

static_assert(std::endian::native == std::endian::little);

using Bytes = std::span<const std::byte>;

// Of a varint: seven bits each.
inline constexpr std::size_t kMostDigits = 10;

class Writer {
 public:
  void u8(std::uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void varint(std::uint64_t value) {
    std::byte digits[kMostDigits];
    std::size_t count = 0;
    for (; value >= 0x80; value >>= 7) digits[count++] = static_cast<std::byte>(value | 0x80);
    digits[count++] = static_cast<std::byte>(value);
    raw({digits, count});
  }
  void f64(double value) {
    const auto old = out_.size();
    out_.resize(old + sizeof value);
    std::memcpy(out_.data() + old, &value, sizeof value);
  }
  void raw(Bytes bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void bytes(Bytes data) {
    varint(data.size());
    raw(data);
  }
  void string(std::string_view text) { bytes(std::as_bytes(std::span(text))); }

  // Reserves room for `size` bytes, prefixed with their count, for the caller to fill in.
  std::byte* reserve(std::size_t size) {
    varint(size);
    const auto old = out_.size();
    out_.resize(old + size);
    return out_.data() + old;
  }

  std::size_t size() const { return out_.size(); }
  Bytes view() const { return out_; }
  void clear() { out_.clear(); }

 private:
  std::vector<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(Bytes bytes) : rest_(bytes) {}

  std::uint8_t u8() {
    const Bytes b = take(1);
    return b.empty() ? 0 : static_cast<std::uint8_t>(b[0]);
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    const std::size_t most = failed_ ? 0 : std::min(kMostDigits, rest_.size());
    for (std::size_t i = 0; i < most; ++i) {
      const auto digit = static_cast<std::uint64_t>(rest_[i]);
      value |= (digit & 0x7f) << (7 * i);
      if (digit >= 0x80) continue;
      rest_ = rest_.subspan(i + 1);
      return value;
    }
    failed_ = true;
    return 0;
  }
  double f64() {
    double value = 0;
    const Bytes b = take(sizeof value);
    if (!b.empty()) std::memcpy(&value, b.data(), sizeof value);
    return value;
  }
  Bytes bytes() { return take(varint()); }
  std::string string() {
    const Bytes b = bytes();
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }
  // A count of items of at least `item_bytes` each: a count that cannot fit in what is left is a
  // lie.
  std::size_t count(std::size_t item_bytes = 1) {
    const std::uint64_t n = varint();
    if (n > rest_.size() / item_bytes) failed_ = true;
    return failed_ ? 0 : n;
  }
  // An enumerator below `limit`.
  template <typename Enum>
  Enum enumerator(int limit) {
    const std::uint8_t value = u8();
    if (value >= limit) failed_ = true;
    return failed_ ? Enum{} : static_cast<Enum>(value);
  }

  bool ok() const { return !failed_; }
  bool done() const { return !failed_ && rest_.empty(); }

 private:
  Bytes take(std::uint64_t size) {
    if (failed_ || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const Bytes head = rest_.first(size);
    rest_ = rest_.subspan(size);
    return head;
  }

  Bytes rest_;
  bool failed_ = false;
};

}  // namespace khorovod
