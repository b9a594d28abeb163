#include "planes/item_plane.h"

#include "base/float_environment.h"

namespace khorovod {

namespace {

constexpr int kMaxRounds = 16;  // in one `advance`: control messages want a turn

// Any share of a chunk fits, of any set: half a chunk if there are two members, less if there are
// more, and what rounding to cache lines adds.
constexpr std::size_t largest_share(std::size_t chunk_bytes) {
  return (chunk_bytes / 2 + 191) / 64 * 64;
}

std::size_t index(int member) { return static_cast<std::size_t>(member); }

}  // namespace

ItemPlane::ItemPlane(int rank, int size, std::vector<std::string> names, std::size_t chunk_bytes)
    : rank_(rank), slot_bytes_(largest_share(chunk_bytes)), works_(rank, chunk_bytes) {
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    lanes_.push_back({.rank = peer, .name = std::move(names[index(peer)])});
  }
}

// ---------------------------------------------------------------------------------------------------
// Works and places

void ItemPlane::submit(Work work) {
  ItemWork& cut = works_.push(std::move(work));
  for (const int rank : cut.work.members->ranks) {
    cut.joint.push_back(rank == rank_ ? 0 : lane_of(rank).joint);
    if (rank != rank_) lane_of(rank).joint += cut.chunks;
  }
  // Places that stood behind the last work go to something to do in this one, or behind it.
  for (ItemLane& lane : lanes_) {
    for (const ItemKind kind : {kInput, kResult}) {
      pass_over(lane, Direction::kIn, kind, lane.in[kind]);
      pass_over(lane, Direction::kOut, kind, lane.out[kind]);
    }
  }
  pass_over_own();
}

// What the item at a place carries; there must be a work for it.
Cargo ItemPlane::cargo_at(const ItemLane& lane, Direction way, ItemKind kind,
                          const Place& place) const {
  const ItemWork& cut = works_.at(place);
  const int peer = cut.work.members->index_of(lane.rank);
  if (peer < 0) return {};
  const bool incoming = way == Direction::kIn;
  return cargo_of(cut, kind, incoming ? peer : cut.me, incoming ? cut.me : peer, place.chunk);
}

void ItemPlane::pass_over(const ItemLane& lane, Direction way, ItemKind kind, Place& place) const {
  while (works_.holds(place)) {
    const Cargo cargo = cargo_at(lane, way, kind, place);
    if (cargo.stream == nullptr) {
      works_.skip_work(place);
    } else if (cargo.empty()) {
      works_.move_on(place);
    } else {
      break;
    }
  }
}

void ItemPlane::pass_over_own() {
  while (works_.holds(own_)) {
    const Cargo own = own_part(works_.at(own_), own_.chunk);
    if (own.stream == nullptr) {
      works_.skip_work(own_);
    } else if (own.empty()) {
      works_.move_on(own_);
    } else {
      break;
    }
  }
}

// Of a chunk in a work that both ranks of the lane are in, or behind all works.
std::uint64_t ItemPlane::joint_number(const ItemLane& lane, const Place& place) const {
  if (!works_.holds(place)) return lane.joint;
  const ItemWork& cut = works_.at(place);
  return cut.joint[index(cut.work.members->index_of(lane.rank))] + place.chunk;
}

std::byte* ItemPlane::slot(ItemLane& lane, const Place& place) {
  return lane.staging.of(kWindow * slot_bytes_) + joint_number(lane, place) % kWindow * slot_bytes_;
}

void ItemPlane::pack_inputs(const Work& work, const Cargo& cargo, std::byte* to) {
  for_each_piece(
      *cargo.stream, cargo.share.begin, cargo.share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
        to_wire(work, to + at * dtype_size(work.wire), segment.in + within * dtype_size(work.dtype),
                count);
      });
}

void ItemPlane::pack_outputs(const Work& work, const Cargo& cargo, std::byte* to) {
  const std::size_t element = dtype_size(work.wire);
  for_each_piece(
      *cargo.stream, cargo.share.begin, cargo.share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
        cached_copy(to + at * element, segment.out + within * element, count * element);
      });
}

void ItemPlane::unpack(const Work& work, const Cargo& cargo, const std::byte* from) {
  for_each_piece(
      *cargo.stream, cargo.share.begin, cargo.share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
        from_wire(work, segment.out + within * dtype_size(work.dtype),
                  from + at * dtype_size(work.wire), count);
      });
}

bool ItemPlane::may_send_input(const ItemLane& lane, const Place& input) {
  if (!works_.holds(input)) return false;
  const ItemWork& cut = works_.at(input);
  if (reduces(cut.work)) return has_room(lane, input, lane.in[kResult]);
  if (cut.work.movement != Movement::kBroadcast || cut.work.root == cut.me) return true;
  const auto parent = index(broadcast_parent(cut, cut.me));
  return lane_of(cut.work.members->ranks[parent]).in[kInput] > input;
}

// ---------------------------------------------------------------------------------------------------
// What this rank does by itself

// Reduces this rank's part of a chunk from everybody's inputs, in the order of members.
void ItemPlane::reduce_own(const ItemWork& cut, const Cargo& own) {
  const Work& work = cut.work;
  const int n = work.members->size();
  const std::size_t on_wire = dtype_size(work.wire);
  const std::size_t in_tensor = dtype_size(work.dtype);
  const bool as_it_is = travels_as_it_is(work);
  const bool converts = work.wire != work.dtype;
  slots_.resize(index(n));
  sources_.resize(index(n));
  for (int m = 0; m < n; ++m) {
    slots_[index(m)] = m == cut.me ? own_wire_.of(slot_bytes_)
                                   : slot(lane_of(work.members->ranks[index(m)]), own_);
  }
  std::byte* const result = slots_[cut.me == 0 ? 1 : 0];  // if it is to be converted
  for_each_piece(
      *own.stream, own.share.begin, own.share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
        for (int m = 0; m < n; ++m) sources_[index(m)] = slots_[index(m)] + at * on_wire;
        const std::byte* const in = segment.in + within * in_tensor;
        std::byte* const out = segment.out + within * in_tensor;
        if (as_it_is) {
          sources_[index(cut.me)] = in;
        } else {
          to_wire(work, slots_[index(cut.me)] + at * on_wire, in, count);
        }
        std::byte* const target = converts ? result + at * on_wire : out;
        kernels().reduce(work.reduction, work.wire, target, sources_.data(), n, count,
                         work.postscale);
        if (converts) from_wire(work, out, target, count);
      });
  if (!converts || work.movement != Movement::kAllreduce) return;  // nobody else gets it
  for (int m = 0; m < n; ++m) {
    if (m == cut.me || slots_[index(m)] == result) continue;
    std::memcpy(slots_[index(m)], result, own.share.count() * on_wire);
  }
}

bool ItemPlane::inputs_are_here(const ItemWork& cut) {
  if (!reduces(cut.work)) return true;
  for (const int rank : cut.work.members->ranks) {
    if (rank != rank_ && lane_of(rank).in[kInput] <= own_) return false;
  }
  return true;
}

bool ItemPlane::do_own_parts() {
  bool moved = false;
  while (works_.holds(own_)) {
    const ItemWork& cut = works_.at(own_);
    if (!inputs_are_here(cut)) return moved;
    const Cargo own = own_part(cut, own_.chunk);
    if (reduces(cut.work)) {
      reduce_own(cut, own);
    } else {
      const bool apart = cut.work.movement == Movement::kAlltoall;
      copy_own(cut.work, *own.stream, apart ? cut.work.receive[index(cut.me)] : *own.stream,
               own.share);
    }
    works_.move_on(own_);
    pass_over_own();
    moved = true;
  }
  return moved;
}

bool ItemPlane::is_finished(const ItemWork& cut) {
  if (own_ <= finished_) return false;
  for (const int rank : cut.work.members->ranks) {
    if (rank == rank_) continue;
    const ItemLane& lane = lane_of(rank);
    for (const ItemKind kind : {kInput, kResult}) {
      if (lane.in[kind] <= finished_ || lane.out[kind] <= finished_) return false;
    }
  }
  return true;
}

bool ItemPlane::in_oldest_work(const ItemLane& lane) const {
  for (const ItemKind kind : {kInput, kResult}) {
    if (works_.in_oldest(lane.in[kind]) || works_.in_oldest(lane.out[kind])) return true;
  }
  return false;
}

bool ItemPlane::finish(const Done& done) {
  bool moved = false;
  for (; works_.holds(finished_) && is_finished(works_.at(finished_)); moved = true) {
    works_.finish_chunk(finished_, done);
  }
  return moved;
}

bool ItemPlane::advance(const Done& done) {
  if (works_.empty() || !failure_.ok()) return false;
  const FloatEnvironment ieee;
  bool moved = false;
  for (int round = 0; round < kMaxRounds && failure_.ok(); ++round) {
    bool now = receive_items();
    now |= do_own_parts();
    now |= send_items();
    now |= finish(done);
    if (!now) {
      if (failure_.ok()) look_for_failure();
      return moved;
    }
    moved = true;
  }
  return moved;
}

}  // namespace khorovod
