// Allreduce and broadcast over one connected stream socket per pair of ranks.
//
// A work's stream is cut into chunks, of which every rank owns a share (see share_of). Of an
// allreduce two kinds of items travel for a chunk, each preceded by a header of eight bytes:
//   input    the sender's input of the receiver's share, into one of kWindow staging slots
//   result   the sender's share, reduced, straight into the receiver's output
// Of a broadcast the chunk travels as an input from the root, straight into the output.
//
// Items of one kind follow each other in the order of chunks, through all works, so that both sides
// know what comes; the kinds overtake each other, so that no result waits for inputs of later
// chunks. A place per kind and direction says how far each is; what a rank has no part in is passed
// over.
//
// Why nothing deadlocks. Input k goes to a peer only after that peer's result k - kWindow came
// back, so its slot is free: a rank can always read what it is sent, unless it has not heard of the
// plan yet, which the control connection tells it whatever happens here. Reading never waits for
// writing.
//
// Why tensors may be reduced in place. A peer's result for its share of a chunk can only arrive
// after the peer had our whole input of that share, so that memory is no longer read (checked in
// open_item); our own share of the input goes to nobody. Results are sent from the output; a chunk
// is finished when all of its items are received and handed to the kernel.
#pragma once

#include <sys/uio.h>

#include <array>
#include <string>

#include "base/unique_fd.h"
#include "planes/streaming.h"

namespace khorovod {

class TcpPlane : public DataPlane {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
  static constexpr std::uint64_t kWindow = 4;  // staging holds this many chunks

  // `sockets[r]` is connected with rank r, `names[r]` describes it in messages; the own entries are
  // not used. `chunk_bytes` is the same on all ranks and a multiple of 64.
  TcpPlane(int rank, int size, std::vector<UniqueFd> sockets, std::vector<std::string> names,
           std::size_t chunk_bytes = kChunkBytes);

  // For whoever closes the connections in order.
  std::vector<int> descriptors() const;
  // For a forked child, which must not keep its parent's connections open; nothing else works
  // after.
  void close_descriptors();

  const char* name() const override { return "tcp"; }
  void submit(Work work) override { works_.push(std::move(work)); }
  bool advance(const SegmentDone& done) override;
  Status failure() const override { return failure_; }
  bool notices_departures() const override { return true; }
  void abort() override;
  void wanted_fds(std::vector<pollfd>& fds) const override;

 private:
  enum Kind : std::uint32_t { kInput = 0, kResult = 1 };

  struct Header {
    std::uint32_t what = 0;  // the chunk's number, shifted left by one, and the kind
    std::uint32_t bytes = 0;
  };

  // One direction of a connection.
  struct Flow {
    int from;
    int to;
    std::array<Place, 2> places{};  // the next item of each kind
    bool active = false;            // an item is under way:
    Kind kind = kInput;             //   which
    Share share{};                  //   what it covers of its chunk
    std::size_t moved = 0;          //   how much of it has moved
    Header header{};                // out: of the item under way; in: of the next one
    std::size_t header_moved = 0;
    int error = 0;  // the stream is over

    Place& place() { return places[kind]; }
  };

  struct Lane {
    UniqueFd socket;
    std::string name;
    Flow in;
    Flow out;
    std::vector<std::byte> staging{};  // slots for the peer's inputs; empty until needed
    std::vector<std::byte> scaled{};   // the input item under way, if it is scaled
  };

  Share share_in(const Flow& flow, Kind kind) const;
  void pass_over(Flow& flow);
  void settle();
  bool has_share(const Place& place) const;
  std::byte* slot(Lane& lane, std::uint64_t chunk);

  bool receive(Lane& lane);
  bool open_item(Lane& lane);
  bool can_open(const Flow& in) const;
  bool send(Lane& lane);
  bool choose_item(Lane& lane);
  bool add_tensor_pieces(Flow& flow, bool input);
  void finish_item(Flow& flow);

  bool reduce();
  void reduce_share(Share share);
  bool finish(const SegmentDone& done);
  void check_streams();

  const int rank_;
  const int size_;
  const std::size_t slot_bytes_;
  WorkStream works_;
  std::vector<Lane> lanes_;  // one per peer
  Place reduced_;            // the next chunk of which this rank reduces its share
  Place finished_;           // the oldest chunk that still needs something
  Status failure_;
  std::vector<iovec> pieces_;              // scratch of one call to the kernel
  std::vector<const std::byte*> sources_;  // scratch of reduce_share
  std::vector<std::byte> own_scaled_;      // scratch of reduce_share
};

}  // namespace khorovod
