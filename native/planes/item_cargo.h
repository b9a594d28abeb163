// What travels between two ranks for a chunk of a work: pure functions of the work, which both
// ranks compute alike.
#pragma once

#include "planes/streaming.h"

namespace khorovod {

// Items of a work, see item_plane.h.
enum ItemKind : std::uint32_t { kInput = 0, kResult = 1 };

struct ItemWork : CutWork {
  // For each member: how many chunks the earlier works have that this rank shares with it.
  std::vector<std::uint64_t> joint;
};

// Elements of one of this rank's streams.
struct Cargo {
  const Stream* stream = nullptr;  // none: no item of this kind travels here in this work
  Share share{};

  bool empty() const { return stream == nullptr || share.empty(); }
};

// What an item of a chunk carries from one member to another; one of them is this rank.
Cargo cargo_of(const ItemWork& cut, ItemKind kind, int from, int to, std::uint64_t chunk);

// What this rank makes final of a chunk by itself: reduces it from everybody's inputs, or copies
// what it would send to itself.
Cargo own_part(const ItemWork& cut, std::uint64_t chunk);

// From whom a member gets what is broadcast; -1 for the root.
int broadcast_parent(const ItemWork& cut, int member);

// Whether what is received as an input waits in a slot until it is reduced.
inline bool reduces(const Work& work) {
  return work.movement == Movement::kAllreduce || work.movement == Movement::kReducescatter;
}

// The result of a reducescatter stays where it is: its items only say that an input was used.
inline bool only_acknowledges(const Work& work, ItemKind kind) {
  return kind == kResult && work.movement == Movement::kReducescatter;
}

inline std::size_t item_bytes(const Work& work, ItemKind kind, const Cargo& cargo) {
  return only_acknowledges(work, kind) ? 0 : cargo.share.count() * dtype_size(work.wire);
}

}  // namespace khorovod
