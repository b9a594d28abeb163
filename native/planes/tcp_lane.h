// The TCP plane's connection with one other rank: what travels each way, and how far it has come.
#pragma once

#include "base/unique_fd.h"
#include "planes/item_plane.h"

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
  bool active = false;          // an item is under way:
  ItemKind kind = kInput;       //   which
  Cargo cargo{};                //   what it carries
  std::byte* buffer = nullptr;  //   where that is; none: in the tensors,
  bool in_inputs = false;       //     in their inputs rather than their outputs
  std::size_t bytes = 0;        //   how long it is
  std::size_t moved = 0;        //   how much of it has moved
  ItemHeader header{};          // out: of the item under way; in: of the next one
  std::size_t header_moved = 0;
  int error = 0;  // the stream is over

  bool header_complete() const { return header_moved == sizeof(ItemHeader); }
};

struct TcpLane {
  UniqueFd socket;
  TcpFlow in{};
  TcpFlow out{};
  LaneBuffer outbox{};  // the input under way, if it is scaled or converted
  LaneBuffer inbox{};   // the result under way, if it is to be converted
};

}  // namespace khorovod
