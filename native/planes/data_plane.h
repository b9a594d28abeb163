// A data plane moves and reduces the bytes of plans, in the order in which they were submitted,
// which is the same on every rank. It never blocks: `advance` does what can be done now. It knows
// nothing of names, negotiation or Python.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "collectives/kernels/kernels.h"
#include "shm/doorbell.h"

namespace khorovod {

// A tensor of this rank within a plan. `in` and `out` may be the same memory.
struct Segment {
  const std::byte* in;
  std::byte* out;
  std::size_t bytes;
};

enum class Movement : std::uint8_t { kAllreduce, kBroadcast };

// One plan's share of this rank: the segments follow each other as one stream of elements of one
// type, cut alike on every rank.
struct Work {
  std::uint64_t plan = 0;
  Movement movement = Movement::kAllreduce;
  DType dtype = DType::kFloat32;
  Scale prescale;
  Scale postscale;
  int root = 0;  // of a broadcast
  std::vector<Segment> segments;
  std::size_t bytes = 0;  // of all segments
};

// A segment and its offset in the stream. Empty segments do not occur in a work.
struct SegmentCursor {
  std::size_t segment = 0;
  std::size_t at = 0;
};

// Walks the pieces of segments that cover bytes [begin, end) of a work's stream, calling
// piece(segment, offset in segment, offset from begin, bytes). The cursor must stand at or before
// `begin` and is moved to the segment that holds it, so that rising calls cost no search.

template <typename Piece>
void for_each_piece(const Work& work, SegmentCursor& cursor, std::size_t begin, std::size_t end,
                    Piece piece) {
  while (cursor.at + work.segments[cursor.segment].bytes <= begin) {
    cursor.at += work.segments[cursor.segment++].bytes;
  }
  SegmentCursor c = cursor;
  for (std::size_t at = begin; at < end;) {
    const Segment& segment = work.segments[c.segment];
    const std::size_t within = at - c.at;
    const std::size_t bytes = std::min(segment.bytes - within, end - at);
    piece(segment, within, at - begin, bytes);
    at += bytes;
    c.at += segment.bytes;
    ++c.segment;
  }
}

class DataPlane {
 public:
  // Called from `advance` as soon as a segment's output is final and its input is no longer read.
  using SegmentDone = std::function<void(std::uint64_t plan, std::size_t segment)>;

  virtual ~DataPlane() = default;

  virtual const char* name() const = 0;
  // Takes a work with at least one byte. Works run in the order of submission.
  virtual void submit(Work work) = 0;
  // Does what can be done without waiting; true if anything moved.
  virtual bool advance(const SegmentDone& done) = 0;
  // kOk, or why the plane can never finish what it has (a connection broke).
  virtual Status failure() const { return {}; }
  // Whether `failure` also tells when a rank has left that the works under way still need. Where
  // bytes are on their way after a rank has left (sockets), only the plane can know.
  virtual bool notices_departures() const { return false; }
  // Forgets all work; tensors are no longer touched. The plane is not used again.
  virtual void abort() = 0;
  // What a sleeper must wait for: kinds of News in a shared-memory domain, or sockets.
  virtual Wanted wanted_news() const { return {}; }
  virtual void wanted_fds(std::vector<pollfd>&) const {}
};

}  // namespace khorovod
