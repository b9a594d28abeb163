#include "planes/item_cargo.h"

namespace khorovod {

namespace {

Cargo part(const ItemWork& cut, const Stream& stream, std::uint64_t chunk) {
  return {&stream, cut.share(chunk, stream)};
}

Cargo reduced_by(const ItemWork& cut, int member, std::uint64_t chunk) {
  Cargo cargo = part(cut, cut.work.streams.front(), chunk);
  cargo.share = share_of(member, cut.work.members->size(), cargo.share, dtype_size(cut.work.wire));
  return cargo;
}

const Stream& stream_of(const std::vector<Stream>& streams, int member) {
  return streams[static_cast<std::size_t>(member)];
}

}  // namespace

Cargo cargo_of(const ItemWork& cut, ItemKind kind, int from, int to, std::uint64_t chunk) {
  const Work& work = cut.work;
  const bool input = kind == kInput;
  switch (work.movement) {
    case Movement::kAllreduce:
      return reduced_by(cut, input ? to : from, chunk);
    case Movement::kBroadcast:
      if (!input || broadcast_parent(cut, to) != from) return {};
      return part(cut, work.streams.front(), chunk);
    case Movement::kAllgather:
      if (!input) return {};
      return part(cut, stream_of(work.streams, from), chunk);
    case Movement::kAlltoall:
      if (!input) return {};
      if (from == cut.me) return part(cut, stream_of(work.streams, to), chunk);
      return part(cut, stream_of(work.receive, from), chunk);
    case Movement::kReducescatter:
      return part(cut, stream_of(work.streams, input ? to : from), chunk);
  }
  return {};
}

Cargo own_part(const ItemWork& cut, std::uint64_t chunk) {
  switch (cut.work.movement) {
    case Movement::kAllreduce:
      return reduced_by(cut, cut.me, chunk);
    case Movement::kBroadcast:
      return {};
    case Movement::kAllgather:
    case Movement::kAlltoall:
    case Movement::kReducescatter:
      return part(cut, stream_of(cut.work.streams, cut.me), chunk);
  }
  return {};
}

int broadcast_parent(const ItemWork& cut, int member) {
  const int n = cut.work.members->size();
  const int place = (member - cut.work.root + n) % n;
  if (place == 0) return -1;
  // In a chain everybody sends once, but the last one waits for n - 1 others: worth it only if
  // there are chunks enough to keep all of them busy. In a tree few stand between root and leaf.
  const bool chain = cut.chunks >= static_cast<std::uint64_t>(n);
  const int parent = chain ? place - 1 : (place - 1) / 2;
  return (parent + cut.work.root) % n;
}

}  // namespace khorovod
