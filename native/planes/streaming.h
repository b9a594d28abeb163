// What planes share that stream works in chunks: the queue of works, places in it, shares of a
// chunk, and the completion of tensors as their bytes become final.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>

#include "planes/data_plane.h"

namespace khorovod {

// Bytes [begin, end) of a chunk.
struct Share {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool empty() const { return begin == end; }
  std::size_t bytes() const { return end - begin; }
};

// What a rank reduces of a chunk: whole cache lines, so that no two ranks write to the same line.
inline Share share_of(int rank, int size, std::size_t bytes) {
  const auto n = static_cast<std::size_t>(size);
  const std::size_t each = (bytes / n + 63) / 64 * 64;
  const std::size_t begin = std::min(bytes, each * static_cast<std::size_t>(rank));
  return {begin, rank == size - 1 ? bytes : std::min(bytes, begin + each)};
}

// Copies or scales one piece of a tensor.
inline void move_scaled(DType dtype, std::byte* dst, const std::byte* src, std::size_t bytes,
                        Scale scale) {
  if (scale.identity()) {
    std::memcpy(dst, src, bytes);
  } else {
    kernels().scale(dtype, dst, src, bytes / dtype_size(dtype), scale);
  }
}

// How far something has come that runs through all chunks in order.
struct Place {
  std::uint64_t work = 0;   // counted over the life of the plane, like chunks
  std::uint64_t chunk = 0;  // the next one to do
  std::size_t at = 0;       // its first byte in the work's stream
  SegmentCursor cursor;     // at or before it
};

// Works that are not finished yet, cut into chunks.
class WorkStream {
 public:
  explicit WorkStream(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  void push(Work work) { works_.push_back(std::move(work)); }
  void clear() { works_.clear(); }
  bool empty() const { return works_.empty(); }
  bool holds(const Place& place) const { return place.work - first_ < works_.size(); }
  bool in_oldest(const Place& place) const { return holds(place) && place.work == first_; }
  const Work& work_at(const Place& place) const { return works_[place.work - first_]; }
  std::size_t chunk_bytes(const Place& place) const {
    return std::min(chunk_bytes_, work_at(place).bytes - place.at);
  }

  void move_on(Place& place) const {
    place.at += chunk_bytes(place);
    ++place.chunk;
    if (place.at == work_at(place).bytes) {
      ++place.work;
      place.at = 0;
      place.cursor = {};
    }
  }

  // The chunk at `place`, in the oldest work, needs nothing any more. Tensors complete one by one,
  // while later ones of the same plan are still under way.
  void finish_chunk(Place& place, const DataPlane::SegmentDone& done) {
    const Work& work = works_.front();
    const std::size_t final_bytes = place.at + chunk_bytes(place);
    while (completed_ < work.segments.size() &&
           completed_bytes_ + work.segments[completed_].bytes <= final_bytes) {
      completed_bytes_ += work.segments[completed_].bytes;
      done(work.plan, completed_++);
    }
    move_on(place);
    if (place.work == first_) return;
    works_.pop_front();
    ++first_;
    completed_ = completed_bytes_ = 0;
  }

 private:
  const std::size_t chunk_bytes_;
  std::deque<Work> works_;
  std::uint64_t first_ = 0;          // number of works_.front()
  std::size_t completed_ = 0;        // segments of the oldest work
  std::size_t completed_bytes_ = 0;  // up to the end of the last of them
};

}  // namespace khorovod
