// Items as messages of MPI, one each, with a tag per kind.
//
// MPI only ever sees memory of this plane: what is sent is packed, what is received is unpacked, or
// reduced where it is. So the plane can be abandoned at any time, which MPI offers no way to do: a
// message that its peer will never take keeps its memory, and no tensor's. The copies stay in the
// cache, and networks that want memory registered register it once.
//
// Up to kDepth items per kind and direction are under way, so that MPI always has something to do.
// Sends are synchronous ones: they are complete when the receiver has the message or takes it
// straight from here. So when this plane has no works left, nobody needs this process to call MPI
// any more, and it may stop polling; MPI moves nothing by itself.
#pragma once

#include <deque>

#include "base/clock.h"
#include "planes/item_plane.h"
#include "transport/message_passing.h"

namespace khorovod {

class MpiPlane : public ItemPlane {
 public:
  // Measured with Open MPI and MPICH, 64 MiB between two ranks of one machine: half the chunk, or
  // twice the depth, took half again to twice as long with the former.
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
  static constexpr std::size_t kDepth = 2;

  // Messages use the tags `tag` and `tag + 1`: none that an earlier, abandoned plane on the same
  // communicator has used. `names` and `chunk_bytes` as for ItemPlane.
  MpiPlane(int rank, int size, std::unique_ptr<MessagePassing> mpi, int tag,
           std::vector<std::string> names, std::size_t chunk_bytes = kChunkBytes);

  const char* name() const override { return "mpi"; }
  void submit(Work work) override;
  bool polls() const override { return !works_.empty() && failure_.ok(); }
  void abort() override;
  // MPI does not say whether anything is on its way: that is known by nothing moving for long.
  int awaited_in_vain(const std::function<bool(int)>& has_left) const override;

 private:
  // An item under way.
  struct Shipment {
    MessagePassing::Request request;
    Cargo cargo;
    std::byte* buffer;
    std::size_t bytes;
  };

  // Items of one kind and direction, between this rank and another.
  struct Route {
    Place next{};                    // not started yet
    std::deque<Shipment> started{};  // the oldest first; that is at the lane's place
    std::uint64_t count = 0;         // of all that were started
    LaneBuffer memory{};             // kDepth items
  };

  struct Routes {
    std::array<Route, 2> in;  // by kind
    std::array<Route, 2> out;
  };

  bool receive_items() override;
  bool send_items() override;

  bool start_receives(ItemLane& lane, ItemKind kind, Route& route);
  bool start_sends(ItemLane& lane, ItemKind kind, Route& route);
  void pack(ItemLane& lane, ItemKind kind, const Place& place, const Shipment& shipment);
  bool take_received(ItemLane& lane, ItemKind kind, Route& route);
  bool take_sent(ItemLane& lane, ItemKind kind, Route& route);
  bool oldest_is_done(const ItemLane& lane, Route& route, std::size_t& bytes);
  std::byte* next_buffer(Route& route);
  void fail(const ItemLane& lane, const char* what, int error);

  const std::unique_ptr<MessagePassing> mpi_;
  const int tag_;
  const std::size_t item_bytes_;  // of the largest
  std::vector<Routes> routes_;    // by lane
  Nanoseconds moved_ = 0;         // when something did last
};

}  // namespace khorovod
