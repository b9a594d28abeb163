// The TCP plane's connection with one other rank: what travels each way, and how far it has come.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "planes/tcp_cargo.h"

namespace khorovod {

// Precedes every item.
struct ItemHeader {
  std::uint64_t plan = 0;
  std::uint32_t what = 0;   // the chunk's number in its work, shifted left by one, and the kind
  std::uint32_t bytes = 0;  // of the item

  static ItemHeader of(const Work& work, std::uint64_t chunk, ItemKind kind, std::size_t bytes) {
    return {work.plan, static_cast<std::uint32_t>(chunk << 1) | kind,
            static_cast<std::uint32_t>(bytes)};
  }
  ItemKind kind() const { return static_cast<ItemKind>(what & 1); }
  bool operator==(const ItemHeader&) const = default;
};
static_assert(sizeof(ItemHeader) == 16);  // no padding: it travels as it is

// One direction of a connection.
struct TcpFlow {
  std::array<Place, 2> places{};  // the next item of each kind
  bool active = false;            // an item is under way:
  ItemKind kind = kInput;         //   which
  Cargo cargo{};                  //   what it carries
  std::byte* buffer = nullptr;    //   where that is; none: in the tensors,
  bool in_inputs = false;         //     in their inputs rather than their outputs
  std::size_t bytes = 0;          //   how long it is
  std::size_t moved = 0;          //   how much of it has moved
  ItemHeader header{};            // out: of the item under way; in: of the next one
  std::size_t header_moved = 0;
  int error = 0;  // the stream is over

  const Place& place() const { return places[kind]; }
  bool header_complete() const { return header_moved == sizeof(ItemHeader); }
};

// Memory that costs nothing until it is touched.
class LaneBuffer {
 public:
  std::byte* of(std::size_t bytes) {
    if (memory_ == nullptr) memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

struct TcpLane {
  int rank;  // the peer
  UniqueFd socket;
  std::string name;
  TcpFlow in{};
  TcpFlow out{};
  std::uint64_t joint = 0;  // chunks of all works so far that both ranks are in
  LaneBuffer staging{};     // slots for the peer's inputs
  LaneBuffer outbox{};      // the input under way, if it is scaled or converted
  LaneBuffer inbox{};       // the result under way, if it is to be converted
};

}  // namespace khorovod
