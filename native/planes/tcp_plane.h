// All movements over one connected stream socket per pair of ranks.
//
// A work's streams are cut into chunks, and for a chunk up to two kinds of items travel between two
// members, each preceded by a header:
//   input    what the sender has for the receiver: straight into the receiver's output, or, if it
//            is to be reduced, into one of kWindow slots that the receiver keeps for the sender
//   result   of an allreduce: the sender's share of the chunk, reduced; of a reducescatter:
//   nothing,
//            it says that the receiver's input was used
// What is empty does not travel; both ends compute that alike (tcp_cargo.h).
//
// Items of one kind follow each other in the order of works and chunks, so that both ends know what
// comes; the kinds overtake each other, so that no result waits for inputs of later chunks. A place
// per kind and direction says how far each is. Two ranks have the works that they share in the same
// order, but each may have others in between. So nothing on a connection may depend on those: a
// header names the plan and the chunk within it, and slots and windows go by the *joint* number of
// a chunk, counted over the works that both ranks are in.
//
// Why nothing deadlocks. The input with joint number k goes to a peer only after all results up to
// k - kWindow came back from there, so its slot is free: a rank can always read what it is sent, of
// every work that it has heard of. What it has not heard of the control connection tells it,
// whatever happens here. Reading never waits for writing. Now take the oldest chunk, by plan and
// number, that is unfinished anywhere. On the connections of its members all that comes before it
// is done, so its inputs are next in turn and their windows are open; its reduction waits for them
// only, since each rank reduces in the order of plans; then its results can go. What is broadcast
// is passed on along a tree from the root. So this chunk gets finished, and then the next one.
//
// Why tensors may be reduced in place. A peer's result for its share of a chunk can only arrive
// after the peer had our whole input of that share, so that memory is no longer read (checked in
// open_item); our own share of the input goes to nobody. Results are sent from the output, or, if
// another type travels, from the slot that the receiver's input came in: the receiver does not use
// it again before it has that result. A chunk is finished when all of its items are received and
// handed to the kernel.
#pragma once

#include <sys/uio.h>

#include "planes/tcp_lane.h"

namespace khorovod {

class TcpPlane : public DataPlane {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
  static constexpr std::uint64_t kWindow = 4;  // staging holds this many chunks

  // `sockets[r]` is connected with rank r, `names[r]` describes it in messages; the own entries are
  // not used. `chunk_bytes` is the same on all ranks, a multiple of 64, and at least 64 per rank.
  TcpPlane(int rank, int size, std::vector<UniqueFd> sockets, std::vector<std::string> names,
           std::size_t chunk_bytes = kChunkBytes);

  // For whoever closes the connections in order.
  std::vector<int> descriptors() const;
  // For a forked child, which must not keep its parent's connections open; nothing else works
  // after.
  void close_descriptors();

  const char* name() const override { return "tcp"; }
  void submit(Work work) override;
  bool advance(const Done& done) override;
  Status failure() const override { return failure_; }
  bool notices_departures() const override { return true; }
  void abort() override;
  void wanted_fds(std::vector<pollfd>& fds) const override;

 private:
  using Lane = TcpLane;
  using Flow = TcpFlow;

  // tcp_plane.cc: works, and what this rank does by itself
  Lane& lane_of(int rank) {
    return lanes_[static_cast<std::size_t>(rank < rank_ ? rank : rank - 1)];
  }
  std::uint64_t joint_number(const Lane& lane, const Place& place) const;
  std::byte* slot(Lane& lane, const Place& place);
  void pass_over(Lane& lane, Flow& flow);
  void pass_over_own();
  bool do_own_parts();
  bool inputs_are_here(const TcpWork& cut);
  void reduce_own(const TcpWork& cut, const Cargo& own);
  bool finish(const Done& done);
  bool is_finished(const TcpWork& cut);
  void check_streams();

  // tcp_items.cc: what goes over the sockets
  Cargo next_cargo(const Lane& lane, const Flow& flow, ItemKind kind) const;
  bool awaited(const Flow& in) const;
  bool can_open(const Flow& in) const;
  bool open_item(Lane& lane);
  void end_incoming(Lane& lane);
  bool receive(Lane& lane);
  bool choose_item(Lane& lane);
  bool may_send_input(Lane& lane);
  bool send(Lane& lane);
  void place_outgoing(Lane& lane, const Work& work);
  void place_incoming(Lane& lane, const Work& work);
  bool add_pieces(const Flow& flow);
  bool add_tensor_pieces(const Flow& flow);
  void add_header(Flow& flow);
  void finish_item(Lane& lane, Flow& flow);

  const int rank_;
  const std::size_t slot_bytes_;
  WorkStream<TcpWork> works_;
  std::vector<Lane> lanes_;  // one per peer
  Place own_;                // the next chunk of which this rank has a part to do by itself
  Place finished_;           // the oldest chunk that still needs something
  Status failure_;
  std::vector<iovec> pieces_;              // scratch of one call to the kernel
  std::vector<std::byte*> slots_;          // scratch of reduce_own
  std::vector<const std::byte*> sources_;  // scratch of reduce_own
  LaneBuffer own_wire_;                    // scratch of reduce_own
};

}  // namespace khorovod
