#include "engine/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace khorovod {

namespace {

constexpr std::int64_t kPage = 4096;  // or more: borders of larger pages are borders of these
constexpr std::size_t kWriteBytes = 64 << 10;
constexpr std::int64_t kLeastRoom = 64 << 10;
constexpr std::int64_t kMostRoom = 4 << 20;
constexpr std::string_view kEnd = "]\n";
constexpr std::string_view kFinalEnd = "\n]\n";

int write_at(int file, std::string_view text, std::int64_t offset) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(file, text.data(), text.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    text.remove_prefix(static_cast<std::size_t>(written));
    offset += written;
  }
  return 0;
}

int write_spaces(int file, std::int64_t from, std::int64_t to) {
  static const std::string spaces(kLeastRoom, ' ');
  int error = 0;
  while (from < to && error == 0) {
    const auto length = std::min(to - from, kLeastRoom);
    error =
        write_at(file, std::string_view(spaces).substr(0, static_cast<std::size_t>(length)), from);
    from += length;
  }
  return error;
}

}  // namespace

int TraceFile::append(std::string_view elements) {
  const auto length = static_cast<std::int64_t>(elements.size());
  const auto left = kPage - (size_ + static_cast<std::int64_t>(buffer_.size())) % kPage;
  if (length > left && length <= kPage) buffer_.append(static_cast<std::size_t>(left), ' ');
  buffer_ += elements;
  return buffer_.size() >= kWriteBytes ? flush() : 0;
}

int TraceFile::flush() {
  if (buffer_.empty()) return 0;
  const auto size = size_ + static_cast<std::int64_t>(buffer_.size());
  if (const int error = size > end_ ? grow(size) : 0) return error;
  if (const int error = write_at(file_.get(), buffer_, size_)) return error;
  size_ = size;
  buffer_.clear();
  return 0;
}

int TraceFile::grow(std::int64_t size) {
  const std::int64_t end = size + std::clamp(size, kLeastRoom, kMostRoom);
  // Behind the end spaces do no harm. Only while the end moves, the array is not complete.
  if (const int error = write_spaces(file_.get(), end_ + 1, end)) return error;
  if (const int error = write_at(file_.get(), kEnd, end)) return error;
  if (const int error = end_ < 0 ? 0 : write_at(file_.get(), " ", end_)) return error;
  end_ = end;
  return 0;
}

void TraceFile::finish() {
  // Whatever failed before: what is written here has its place on the disk already.
  if (end_ >= 0 && write_at(file_.get(), kFinalEnd, size_) == 0) {
    const auto whole = size_ + static_cast<std::int64_t>(kFinalEnd.size());
    while (::ftruncate(file_.get(), whole) != 0 && errno == EINTR) {
    }
  }
  file_.reset();
}

}  // namespace khorovod
