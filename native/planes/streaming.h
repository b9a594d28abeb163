// What planes share that cut works into chunks: the queue of works, places in it, shares of a
// chunk, and the completion of tensors as their elements become final.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>

#include "base/stream_copy.h"
#include "planes/data_plane.h"

namespace khorovod {

// Elements [begin, end) of a stream.
struct Share {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool empty() const { return begin >= end; }
  std::size_t count() const { return empty() ? 0 : end - begin; }
};

// What a member reduces of an allreduced chunk: whole cache lines, so that no two ranks write to
// the same line.
inline Share share_of(int member, int size, Share chunk, std::size_t element) {
  const auto n = static_cast<std::size_t>(size);
  const std::size_t line = 64 / element;
  const std::size_t each = (chunk.count() / n + line - 1) / line * line;
  const std::size_t begin =
      std::min(chunk.end, chunk.begin + each * static_cast<std::size_t>(member));
  return {begin, member == size - 1 ? chunk.end : std::min(chunk.end, begin + each)};
}

// Copies, scales or converts elements into the type that travels, and back.
inline void to_wire(const Work& work, std::byte* dst, const std::byte* src, std::size_t count) {
  if (work.wire == work.dtype && work.prescale.identity()) {
    cached_copy(dst, src, count * dtype_size(work.dtype));
  } else {
    kernels().convert(work.wire, dst, work.dtype, src, count, work.prescale);
  }
}

// Moves elements to where they stay. Outputs of an allgather or alltoall that are larger than a
// second-level cache are not read again soon; those of other movements were just read as inputs.
inline void copy_to_output(const Work& work, std::byte* dst, const std::byte* src,
                           std::size_t bytes) {
  constexpr std::size_t kLarge = std::size_t{2} << 20;
  const bool only_written =
      work.movement == Movement::kAllgather || work.movement == Movement::kAlltoall;
  if (only_written && work.longest * dtype_size(work.wire) >= kLarge) {
    stream_copy(dst, src, bytes);
  } else {
    cached_copy(dst, src, bytes);
  }
}

inline void from_wire(const Work& work, std::byte* dst, const std::byte* src, std::size_t count) {
  if (work.wire == work.dtype) {
    copy_to_output(work, dst, src, count * dtype_size(work.dtype));
  } else {
    kernels().convert(work.dtype, dst, work.wire, src, count, {});
  }
}

// What a rank would send to itself. The two streams may be cut into segments differently.
inline void copy_own(const Work& work, const Stream& from, const Stream& to, Share share) {
  const std::size_t element = dtype_size(work.dtype);
  for_each_piece(to, share.begin, share.end,
                 [&](const Segment& target, std::size_t within, std::size_t at, std::size_t count) {
                   const std::size_t begin = share.begin + at;
                   for_each_piece(from, begin, begin + count,
                                  [&](const Segment& source, std::size_t inner, std::size_t offset,
                                      std::size_t part) {
                                    const std::byte* in = source.in + inner * element;
                                    std::byte* out = target.out + (within + offset) * element;
                                    if (out != in) copy_to_output(work, out, in, part * element);
                                  });
                 });
}

// Whether what a rank contributes can be read where it is.
inline bool travels_as_it_is(const Work& work) {
  return work.wire == work.dtype && work.prescale.identity();
}

// How far something has come that runs through all works of this rank, chunk by chunk.
struct Place {
  std::uint64_t work = 0;   // counted over the life of the plane
  std::uint64_t chunk = 0;  // the next one to do, within the work

  auto operator<=>(const Place&) const = default;
};

// A work and how it is cut.
struct CutWork {
  Work work;
  std::size_t chunk = 0;  // elements of each stream that a chunk takes
  std::uint64_t chunks = 0;
  int me = 0;  // this rank's index among the members

  Share share(std::uint64_t number) const { return {number * chunk, (number + 1) * chunk}; }
  // The part of a chunk that a stream has.
  Share share(std::uint64_t number, const Stream& stream) const {
    const Share whole = share(number);
    return {std::min(whole.begin, stream.count), std::min(whole.end, stream.count)};
  }
};

// Of alltoall and reducescatter, what goes to different members has places of its own in a chunk.
inline bool goes_apart(Movement movement) {
  return movement == Movement::kAlltoall || movement == Movement::kReducescatter;
}

// Bytes of a member's place in a chunk of `chunk_bytes` bytes. In an alltoall nobody has a place
// for what it sends to itself.
inline std::size_t place_bytes(Movement movement, std::size_t chunk_bytes, int members) {
  const int places = movement == Movement::kAlltoall ? members - 1 : members;
  return chunk_bytes / static_cast<std::size_t>(places) / 64 * 64;
}

// Where in the chunk of the member `from` the place of the member `to` begins.
inline std::size_t place_offset(Movement movement, std::size_t chunk_bytes, int members, int from,
                                int to) {
  const int before = movement == Movement::kAlltoall && to > from ? to - 1 : to;
  return static_cast<std::size_t>(before) * place_bytes(movement, chunk_bytes, members);
}

// Works that are not finished yet, cut into chunks. `Cut` is a CutWork with what a plane adds.
template <typename Cut>
class WorkStream {
 public:
  // `chunk_bytes` is a multiple of 64 and at least 64 per member.
  WorkStream(int rank, std::size_t chunk_bytes) : rank_(rank), chunk_bytes_(chunk_bytes) {}

  Cut& push(Work work) {
    Cut cut{};
    const int n = work.members->size();
    cut.me = work.members->index_of(rank_);
    const std::size_t bytes =
        goes_apart(work.movement) ? place_bytes(work.movement, chunk_bytes_, n) : chunk_bytes_;
    cut.chunk = bytes / dtype_size(work.wire);
    cut.chunks = (work.longest + cut.chunk - 1) / cut.chunk;
    cut.work = std::move(work);
    works_.push_back(std::move(cut));
    return works_.back();
  }
  void clear() { works_.clear(); }
  bool empty() const { return works_.empty(); }
  bool holds(const Place& place) const { return place.work - first_ < works_.size(); }
  bool in_oldest(const Place& place) const { return holds(place) && place.work == first_; }
  const Cut& at(const Place& place) const { return works_[place.work - first_]; }

  void move_on(Place& place) const {
    if (++place.chunk == at(place).chunks) skip_work(place);
  }
  static void skip_work(Place& place) {
    ++place.work;
    place.chunk = 0;
  }

  // The chunk at `place`, in the oldest work, needs nothing any more. Tensors of an allreduce or
  // broadcast complete one by one, while later ones of the same work are still under way.
  void finish_chunk(Place& place, const DataPlane::Done& done) {
    const Cut& cut = works_.front();
    const Work& work = cut.work;
    if (work.movement == Movement::kAllreduce || work.movement == Movement::kBroadcast) {
      const Stream& stream = work.streams.front();
      const std::size_t final_elements = cut.share(place.chunk, stream).end;
      while (completed_ < stream.segments.size() &&
             stream.segments[completed_].at + stream.segments[completed_].count <= final_elements) {
        done(work.number, completed_++);
      }
    } else if (place.chunk + 1 == cut.chunks) {
      done(work.number, DataPlane::kWhole);
    }
    move_on(place);
    if (place.work == first_) return;
    works_.pop_front();
    ++first_;
    completed_ = 0;
  }

 private:
  const int rank_;
  const std::size_t chunk_bytes_;
  std::deque<Cut> works_;
  std::uint64_t first_ = 0;    // number of works_.front()
  std::size_t completed_ = 0;  // segments of the oldest work
};

}  // namespace khorovod
