// All movements as items between pairs of ranks; what carries the items (sockets, MPI) is a
// subclass.
//
// A work's streams are cut into chunks, and for a chunk up to two kinds of items travel between two
// members:
//   input    what the sender has for the receiver: to the receiver's output, or, if it is to be
//            reduced, into one of kWindow slots that the receiver keeps for the sender
//   result   of an allreduce: the sender's share of the chunk, reduced; of a reducescatter:
//            nothing, it says that the receiver's input was used
// What is empty does not travel; both ends compute that alike (item_cargo.h).
//
// Items of one kind follow each other in the order of works and chunks, so that both ends know what
// comes; the kinds overtake each other, so that no result waits for inputs of later chunks. A place
// per kind and direction says how far each is. Two ranks have the works that they share in the same
// order, but each may have others in between. So nothing between two ranks may depend on those:
// slots and windows go by the *joint* number of a chunk, counted over the works that both are in.
//
// Why nothing deadlocks. The input with joint number k goes to a peer only after all results up to
// k - kWindow came back from there, so its slot is free: a rank can always take what it is sent, of
// every work that it has heard of. What it has not heard of the control connection tells it,
// whatever happens here. Receiving never waits for sending. Now take the oldest chunk, by plan and
// number, that is unfinished anywhere. Between its members all that comes before it is done, so its
// inputs are next in turn and their windows are open; its reduction waits for them only, since each
// rank reduces in the order of plans; then its results can go. What is broadcast is passed on along
// a tree from the root. So this chunk gets finished, and then the next one.
//
// Why tensors may be reduced in place. A peer's result for its share of a chunk can only arrive
// after the peer had our whole input of that share, so that memory is no longer read; our own share
// of the input goes to nobody. Results are sent from the output, or, if another type travels, from
// the slot that the receiver's input came in: the receiver does not use it again before it has that
// result.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "planes/item_cargo.h"

namespace khorovod {

// Memory that costs nothing until it is touched.
class LaneBuffer {
 public:
  std::byte* of(std::size_t bytes) {
    if (memory_ == nullptr) memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    return memory_.get();
  }
  // For memory that somebody else may still touch.
  std::unique_ptr<std::byte[]> take() { return std::move(memory_); }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

using Places = std::array<Place, 2>;  // by kind of item

// How far this rank and another have come with each other.
struct ItemLane {
  int rank;  // the peer
  std::string name;
  Places in{};              // the next items that are not here yet
  Places out{};             // the next items that are not gone yet
  std::uint64_t joint = 0;  // chunks of all works so far that both ranks are in
  LaneBuffer staging{};     // slots for the peer's inputs
};

class ItemPlane : public DataPlane {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
  static constexpr std::uint64_t kWindow = 4;  // staging holds this many chunks

  void submit(Work work) override;
  bool advance(const Done& done) override;
  Status failure() const override { return failure_; }

 protected:
  enum class Direction : std::uint8_t { kIn, kOut };

  // `names[r]` describes rank r in messages. `chunk_bytes` is the same on all ranks, a multiple of
  // 64, and at least 64 per rank.
  ItemPlane(int rank, int size, std::vector<std::string> names, std::size_t chunk_bytes);

  // What a subclass does: moves items and the lanes' places; true if anything moved.
  virtual bool receive_items() = 0;
  virtual bool send_items() = 0;
  // Nothing moves: sees whether that is for good, and sets failure_.
  virtual void look_for_failure() {}

  ItemLane& lane_of(int rank) {
    return lanes_[static_cast<std::size_t>(rank < rank_ ? rank : rank - 1)];
  }
  std::byte* slot(ItemLane& lane, const Place& place);
  std::uint64_t joint_number(const ItemLane& lane, const Place& place) const;
  Cargo cargo_at(const ItemLane& lane, Direction way, ItemKind kind, const Place& place) const;
  // Moves a place on to the next item that is not empty, or behind the last chunk.
  void pass_over(const ItemLane& lane, Direction way, ItemKind kind, Place& place) const;
  // The item at this place is done.
  void go_on(const ItemLane& lane, Direction way, ItemKind kind, Place& place) const {
    works_.move_on(place);
    pass_over(lane, way, kind, place);
  }
  // Between tensors and the bytes of an item. Outputs that are sent have the type that travels.
  static void pack_inputs(const Work& work, const Cargo& cargo, std::byte* to);
  static void pack_outputs(const Work& work, const Cargo& cargo, std::byte* to);
  static void unpack(const Work& work, const Cargo& cargo, const std::byte* from);
  // The items at these places are here, and the peer has room for them.
  bool may_send_input(const ItemLane& lane, const Place& input);
  bool may_send_result(const Place& result) const { return works_.holds(result) && result < own_; }
  // The slot of the input at this place is free.
  bool has_room(const ItemLane& lane, const Place& input, const Place& next_result) const {
    return joint_number(lane, input) < joint_number(lane, next_result) + kWindow;
  }
  // The oldest work has something to do with this peer.
  bool in_oldest_work(const ItemLane& lane) const;

  const int rank_;
  const std::size_t slot_bytes_;
  WorkStream<ItemWork> works_;
  std::vector<ItemLane> lanes_;  // one per peer
  Status failure_;

 private:
  void pass_over_own();
  bool do_own_parts();
  bool inputs_are_here(const ItemWork& cut);
  void reduce_own(const ItemWork& cut, const Cargo& own);
  bool finish(const Done& done);
  bool is_finished(const ItemWork& cut);

  Place own_;                      // the next chunk of which this rank has a part to do by itself
  Place finished_;                 // the oldest chunk that still needs something
  std::vector<std::byte*> slots_;  // scratch of reduce_own
  std::vector<const std::byte*> sources_;  // scratch of reduce_own
  LaneBuffer own_wire_;                    // scratch of reduce_own
};

}  // namespace khorovod
