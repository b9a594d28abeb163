#include "planes/tcp_plane.h"

#include <cerrno>

#include "base/float_environment.h"
#include "transport/socket_io.h"

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

TcpPlane::TcpPlane(int rank, int size, std::vector<UniqueFd> sockets,
                   std::vector<std::string> names, std::size_t chunk_bytes)
    : rank_(rank), slot_bytes_(largest_share(chunk_bytes)), works_(rank, chunk_bytes) {
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    prepare_stream_socket(sockets[index(peer)].get());
    lanes_.push_back({.rank = peer,
                      .socket = std::move(sockets[index(peer)]),
                      .name = std::move(names[index(peer)])});
  }
}

std::vector<int> TcpPlane::descriptors() const {
  std::vector<int> fds;
  for (const Lane& lane : lanes_) fds.push_back(lane.socket.get());
  return fds;
}

void TcpPlane::close_descriptors() {
  for (Lane& lane : lanes_) lane.socket.reset();
}

void TcpPlane::abort() {
  // The connections stay open until the plane goes: their end would reach the peers before the
  // reason.
  works_.clear();
  for (Lane& lane : lanes_) lane.in.active = lane.out.active = false;
}

// ---------------------------------------------------------------------------------------------------
// Works and places

void TcpPlane::submit(Work work) {
  TcpWork& cut = works_.push(std::move(work));
  for (const int rank : cut.work.members->ranks) {
    cut.joint.push_back(rank == rank_ ? 0 : lane_of(rank).joint);
    if (rank != rank_) lane_of(rank).joint += cut.chunks;
  }
  // Places that stood behind the last work go to something to do in this one, or behind it.
  for (Lane& lane : lanes_) {
    pass_over(lane, lane.in);
    pass_over(lane, lane.out);
  }
  pass_over_own();
}

// All places stand at something to do, or behind the last chunk.
void TcpPlane::pass_over(Lane& lane, Flow& flow) {
  for (const ItemKind kind : {kInput, kResult}) {
    Place& place = flow.places[kind];
    while (works_.holds(place)) {
      const Cargo cargo = next_cargo(lane, flow, kind);
      if (cargo.stream == nullptr) {
        works_.skip_work(place);
      } else if (cargo.empty()) {
        works_.move_on(place);
      } else {
        break;
      }
    }
  }
}

void TcpPlane::pass_over_own() {
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
std::uint64_t TcpPlane::joint_number(const Lane& lane, const Place& place) const {
  if (!works_.holds(place)) return lane.joint;
  const TcpWork& cut = works_.at(place);
  return cut.joint[index(cut.work.members->index_of(lane.rank))] + place.chunk;
}

std::byte* TcpPlane::slot(Lane& lane, const Place& place) {
  return lane.staging.of(kWindow * slot_bytes_) + joint_number(lane, place) % kWindow * slot_bytes_;
}

// ---------------------------------------------------------------------------------------------------
// What this rank does by itself

// Reduces this rank's part of a chunk from everybody's inputs, in the order of members.
void TcpPlane::reduce_own(const TcpWork& cut, const Cargo& own) {
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

bool TcpPlane::inputs_are_here(const TcpWork& cut) {
  if (!reduces(cut.work)) return true;
  for (const int rank : cut.work.members->ranks) {
    if (rank != rank_ && lane_of(rank).in.places[kInput] <= own_) return false;
  }
  return true;
}

bool TcpPlane::do_own_parts() {
  bool moved = false;
  while (works_.holds(own_)) {
    const TcpWork& cut = works_.at(own_);
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

bool TcpPlane::is_finished(const TcpWork& cut) {
  if (own_ <= finished_) return false;
  for (const int rank : cut.work.members->ranks) {
    if (rank == rank_) continue;
    const Lane& lane = lane_of(rank);
    for (const ItemKind kind : {kInput, kResult}) {
      if (lane.in.places[kind] <= finished_ || lane.out.places[kind] <= finished_) return false;
    }
  }
  return true;
}

bool TcpPlane::finish(const Done& done) {
  bool moved = false;
  for (; works_.holds(finished_) && is_finished(works_.at(finished_)); moved = true) {
    works_.finish_chunk(finished_, done);
  }
  return moved;
}

// ---------------------------------------------------------------------------------------------------
// Advancing

// A connection that ended is a failure only when the oldest work needs it and nothing else moves: a
// peer that is done with everything may go, and what it sent before it went still counts.
void TcpPlane::check_streams() {
  for (const Lane& lane : lanes_) {
    for (const Flow* flow : {&lane.in, &lane.out}) {
      if (flow->error == 0) continue;
      if (!works_.in_oldest(flow->places[kInput]) && !works_.in_oldest(flow->places[kResult]))
        continue;
      const bool closed = flow->error == ECONNRESET || flow->error == EPIPE;
      failure_ = Status::lost(lane.rank,
                              lane.name + (closed ? " closed its connection in the midst of an "
                                                    "operation: it shut down, died or was killed"
                                                  : describe_lost_connection(flow->error)));
      return;
    }
  }
}

bool TcpPlane::advance(const Done& done) {
  if (works_.empty() || !failure_.ok()) return false;
  const FloatEnvironment ieee;
  bool moved = false;
  for (int round = 0; round < kMaxRounds && failure_.ok(); ++round) {
    bool now = false;
    for (Lane& lane : lanes_) now |= receive(lane);
    now |= do_own_parts();
    for (Lane& lane : lanes_) now |= send(lane);
    now |= finish(done);
    if (!now) {
      if (failure_.ok()) check_streams();
      return moved;
    }
    moved = true;
  }
  return moved;
}

void TcpPlane::wanted_fds(std::vector<pollfd>& fds) const {
  if (works_.empty() || !failure_.ok()) return;
  for (const Lane& lane : lanes_) {
    const Flow& in = lane.in;
    const bool readable =
        in.error == 0 && (in.active || (awaited(in) && (!in.header_complete() || can_open(in))));
    const bool writable = lane.out.error == 0 && lane.out.active;
    const int events = (readable ? POLLIN : 0) | (writable ? POLLOUT : 0);
    if (events != 0) fds.push_back({lane.socket.get(), static_cast<short>(events), 0});
  }
}

}  // namespace khorovod
