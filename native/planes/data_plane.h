// A data plane moves and reduces the bytes of works, in the order in which they were submitted; two
// ranks have the works that they share in the same order. It never blocks: `advance` does what can
// be done now. It knows nothing of names, negotiation or Python.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "base/members.h"
#include "base/status.h"
#include "collectives/kernels/kernels.h"
#include "shm/doorbell.h"

namespace khorovod {

// A piece of this rank's memory at a place in a stream. `in` and `out` may be the same memory.
struct Segment {
  const std::byte* in;
  std::byte* out;
  std::size_t count;  // elements; never 0
  std::size_t at;     // its first element in the stream
};

// Segments back to back.
struct Stream {
  std::vector<Segment> segments;
  std::size_t count = 0;  // elements of all segments

  void add(const std::byte* in, std::byte* out, std::size_t elements) {
    if (elements == 0) return;
    segments.push_back({in, out, elements, count});
    count += elements;
  }
};

// What becomes of the streams of a work. Members are counted by their index in the set.
enum class Movement : std::uint8_t {
  kAllreduce,      // one stream, as long on every rank: in of all -> reduced -> out of all
  kBroadcast,      // one stream: in of the root -> out of the others (its own stays untouched)
  kAllgather,      // stream m: in of member m -> out of the others, and of m itself
  kAlltoall,       // stream m: in -> what this rank sends to m; out <- what it receives from m
                   // (two parts: see `receive`); this rank's own part is moved as well
  kReducescatter,  // stream m: what member m gets: in of all -> reduced -> out of m
};

// One plan's share of this rank.
struct Work {
  std::uint64_t number = 0;  // of this rank's works: for `Done`
  std::uint64_t plan = 0;    // the same on all members
  Movement movement = Movement::kAllreduce;
  Reduction reduction = Reduction::kSum;
  DType dtype = DType::kFloat32;  // of the tensors; what is only moved may be called bytes
  DType wire = DType::kFloat32;   // of what travels and is reduced; may differ if it is reduced
  Scale prescale;                 // before the type becomes `wire`
  Scale postscale;                // after the reduction
  MembersRef members;             // at least two
  int root = 0;                   // of a broadcast: a member's index
  std::vector<Stream> streams;    // one, or one per member
  std::vector<Stream> receive;    // of an alltoall: one per member, by `out`; else empty
  std::size_t longest = 0;  // elements of the longest stream that any member sends or gets; not 0,
                            // and the same on all members
};

// Walks the segments that cover elements [begin, end) of a stream, calling
// piece(segment, offset in segment, offset from begin, elements). Stops at the stream's end.
template <typename Piece>
void for_each_piece(const Stream& stream, std::size_t begin, std::size_t end, Piece piece) {
  end = std::min(end, stream.count);
  if (begin >= end) return;
  auto segment = std::upper_bound(stream.segments.begin(), stream.segments.end(), begin,
                                  [](std::size_t at, const Segment& s) { return at < s.at; }) -
                 1;
  for (std::size_t at = begin; at < end; ++segment) {
    const std::size_t within = at - segment->at;
    const std::size_t count = std::min(segment->count - within, end - at);
    piece(*segment, within, at - begin, count);
    at += count;
  }
}

class DataPlane {
 public:
  // Called from `advance` as soon as an output is final and its input is no longer read: for each
  // segment of an allreduce or broadcast, in order; once, with kWhole, for any other work.
  static constexpr std::size_t kWhole = SIZE_MAX;
  using Done = std::function<void(std::uint64_t work, std::size_t segment)>;

  virtual ~DataPlane() = default;

  virtual const char* name() const = 0;
  virtual void submit(Work work) = 0;
  // Does what can be done without waiting; true if anything moved.
  virtual bool advance(const Done& done) = 0;
  // kOk, or why the plane can never finish what it has (a connection broke).
  virtual Status failure() const { return {}; }
  // Whether `failure` also tells when a rank has left that the works under way still need. Where
  // bytes are on their way after a rank has left (sockets), only the plane can know.
  virtual bool notices_departures() const { return false; }
  // A rank that the plane waits for, of those that `has_left` says have left; -1 if there is none,
  // or if what it sent before may still be on its way.
  virtual int awaited_in_vain(const std::function<bool(int)>& has_left) const {
    const int awaited = wanted_news().from;
    return awaited >= 0 && has_left(awaited) ? awaited : -1;
  }
  // Forgets all work; tensors are no longer touched. The plane is not used again.
  virtual void abort() = 0;
  // What a sleeper must wait for: kinds of News in a shared-memory domain, or sockets.
  virtual Wanted wanted_news() const { return {}; }
  virtual void wanted_fds(std::vector<pollfd>&) const {}
  // Whether nothing tells a sleeper when there is something to do: `advance` must be called again
  // and again.
  virtual bool polls() const { return false; }
};

}  // namespace khorovod
