#include "planes/tcp_plane.h"

#include <cerrno>

#include "base/float_environment.h"
#include "transport/socket_io.h"

namespace khorovod {

namespace {

constexpr std::size_t kMaxPieces = 256;  // in one call to the kernel
constexpr int kMaxRounds = 16;           // in one `advance`: control messages want a turn

constexpr std::uint32_t header_word(std::uint64_t chunk, std::uint32_t kind) {
  return static_cast<std::uint32_t>(chunk << 1) | kind;
}

// Any share of a chunk fits: the last one has the remainder of the division by the ranks.
constexpr std::size_t largest_share(std::size_t chunk_bytes, int size) {
  const auto n = static_cast<std::size_t>(size);
  return (chunk_bytes / n + n + 127) / 64 * 64;
}

}  // namespace

TcpPlane::TcpPlane(int rank, int size, std::vector<UniqueFd> sockets,
                   std::vector<std::string> names, std::size_t chunk_bytes)
    : rank_(rank), size_(size), slot_bytes_(largest_share(chunk_bytes, size)), works_(chunk_bytes) {
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto at = static_cast<std::size_t>(peer);
    prepare_stream_socket(sockets[at].get());
    lanes_.push_back({.socket = std::move(sockets[at]),
                      .name = std::move(names[at]),
                      .in = {.from = peer, .to = rank},
                      .out = {.from = rank, .to = peer}});
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
// What travels

// What the next item of a kind covers of its chunk.
Share TcpPlane::share_in(const Flow& flow, Kind kind) const {
  const Place& place = flow.places[kind];
  const Work& work = works_.work_at(place);
  const std::size_t bytes = works_.chunk_bytes(place);
  if (work.movement == Movement::kAllreduce) {
    return share_of(kind == kInput ? flow.to : flow.from, size_, bytes);
  }
  return kind == kInput && work.root == flow.from ? Share{0, bytes} : Share{};
}

void TcpPlane::pass_over(Flow& flow) {
  for (const Kind kind : {kInput, kResult}) {
    while (works_.holds(flow.places[kind]) && share_in(flow, kind).empty()) {
      works_.move_on(flow.places[kind]);
    }
  }
}

// Whether this rank reduces anything of a chunk.
bool TcpPlane::has_share(const Place& place) const {
  return works_.work_at(place).movement == Movement::kAllreduce &&
         !share_of(rank_, size_, works_.chunk_bytes(place)).empty();
}

// All places stand at something to do, or behind the last chunk.
void TcpPlane::settle() {
  for (Lane& lane : lanes_) {
    pass_over(lane.in);
    pass_over(lane.out);
  }
  while (works_.holds(reduced_) && !has_share(reduced_)) works_.move_on(reduced_);
}

std::byte* TcpPlane::slot(Lane& lane, std::uint64_t chunk) {
  if (lane.staging.empty()) lane.staging.resize(kWindow * slot_bytes_);
  return lane.staging.data() + chunk % kWindow * slot_bytes_;
}

// Adds the rest of the item under way as pieces of tensors; false if there are too many for one
// call.
bool TcpPlane::add_tensor_pieces(Flow& flow, bool input) {
  Place& place = flow.place();
  const Work& work = works_.work_at(place);
  const std::size_t end = place.at + flow.share.end;
  std::size_t at = place.at + flow.share.begin + flow.moved;
  SegmentCursor& cursor = place.cursor;
  while (cursor.at + work.segments[cursor.segment].bytes <= at) {
    cursor.at += work.segments[cursor.segment++].bytes;
  }
  for (SegmentCursor c = cursor; at < end; c.at += work.segments[c.segment++].bytes) {
    if (pieces_.size() >= kMaxPieces) return false;
    const Segment& segment = work.segments[c.segment];
    const std::size_t within = at - c.at;
    const std::size_t bytes = std::min(segment.bytes - within, end - at);
    const std::byte* memory = input ? segment.in : segment.out;
    pieces_.push_back({const_cast<std::byte*>(memory) + within, bytes});
    at += bytes;
  }
  return true;
}

void TcpPlane::finish_item(Flow& flow) {
  flow.active = false;
  flow.moved = 0;
  works_.move_on(flow.place());
  pass_over(flow);
}

// ---------------------------------------------------------------------------------------------------
// Sending

bool TcpPlane::choose_item(Lane& lane) {
  Flow& out = lane.out;
  const Place& result = out.places[kResult];
  const Place& input = out.places[kInput];
  if (works_.holds(result) && result.chunk < reduced_.chunk) {
    out.kind = kResult;
  } else if (works_.holds(input) && (works_.work_at(input).movement == Movement::kBroadcast ||
                                     input.chunk < lane.in.places[kResult].chunk + kWindow)) {
    out.kind = kInput;
  } else {
    return false;
  }
  out.active = true;
  out.share = share_in(out, out.kind);
  out.header = {header_word(out.place().chunk, out.kind),
                static_cast<std::uint32_t>(out.share.bytes())};
  out.header_moved = 0;
  const Work& work = works_.work_at(out.place());
  if (out.kind == kInput && !work.prescale.identity()) {
    lane.scaled.resize(std::max(out.share.bytes(), lane.scaled.size()));
    const std::size_t begin = out.place().at;
    for_each_piece(
        work, out.place().cursor, begin + out.share.begin, begin + out.share.end,
        [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t bytes) {
          move_scaled(work.dtype, lane.scaled.data() + at, segment.in + within, bytes,
                      work.prescale);
        });
  }
  return true;
}

bool TcpPlane::send(Lane& lane) {
  Flow& out = lane.out;
  if (out.error != 0 || (!out.active && !choose_item(lane))) return false;
  pieces_.clear();
  if (out.header_moved < sizeof(Header)) {
    pieces_.push_back({reinterpret_cast<std::byte*>(&out.header) + out.header_moved,
                       sizeof(Header) - out.header_moved});
  }
  if (out.kind == kInput && !works_.work_at(out.place()).prescale.identity()) {
    pieces_.push_back({lane.scaled.data() + out.moved, out.share.bytes() - out.moved});
  } else {
    add_tensor_pieces(out, out.kind == kInput);
  }
  const std::ptrdiff_t sent = send_some(lane.socket.get(), pieces_.data(), pieces_.size());
  if (sent < 0) out.error = static_cast<int>(-sent);
  if (sent <= 0) return false;
  const auto bytes = static_cast<std::size_t>(sent);
  const std::size_t of_header = std::min(bytes, sizeof(Header) - out.header_moved);
  out.header_moved += of_header;
  out.moved += bytes - of_header;
  if (out.moved == out.share.bytes()) finish_item(out);
  return true;
}

// ---------------------------------------------------------------------------------------------------
// Receiving

// False while the next item belongs to a plan that this rank has not heard of.
bool TcpPlane::can_open(const Flow& in) const {
  return works_.holds(in.places[in.header.what & 1]);
}

// The next header is here: sees where its item goes. False if the header makes no sense.
bool TcpPlane::open_item(Lane& lane) {
  Flow& in = lane.in;
  in.kind = static_cast<Kind>(in.header.what & 1);
  const Place& place = in.place();
  const Share share = share_in(in, in.kind);
  bool sane =
      in.header.what == header_word(place.chunk, in.kind) && in.header.bytes == share.bytes();
  if (in.kind == kResult) {
    sane = sane && lane.out.places[kInput].chunk > place.chunk;
  } else if (works_.work_at(place).movement == Movement::kAllreduce) {
    sane = sane && place.chunk < reduced_.chunk + kWindow;
  }
  if (!sane) {
    failure_ = Status::error(Code::kInternal, "data from " + lane.name + " make no sense");
    return false;
  }
  in.active = true;
  in.share = share;
  in.header_moved = 0;
  return true;
}

bool TcpPlane::receive(Lane& lane) {
  Flow& in = lane.in;
  if (in.error != 0) return false;
  if (!in.active) {
    // What nobody here waits for stays in the kernel.
    if (!works_.holds(in.places[kInput]) && !works_.holds(in.places[kResult])) return false;
    if (in.header_moved == sizeof(Header) && (!can_open(in) || !open_item(lane))) return false;
  }
  pieces_.clear();
  bool to_the_end = true;
  if (in.active) {
    const Place& place = in.place();
    if (in.kind == kInput && works_.work_at(place).movement == Movement::kAllreduce) {
      pieces_.push_back({slot(lane, place.chunk) + in.moved, in.share.bytes() - in.moved});
    } else {
      to_the_end = add_tensor_pieces(in, false);
    }
  }
  if (to_the_end) {  // along with the end of an item comes the next header
    pieces_.push_back({reinterpret_cast<std::byte*>(&in.header) + in.header_moved,
                       sizeof(Header) - in.header_moved});
  }
  const std::ptrdiff_t came = receive_some(lane.socket.get(), pieces_.data(), pieces_.size());
  if (came < 0) in.error = static_cast<int>(-came);
  if (came <= 0) return false;
  auto bytes = static_cast<std::size_t>(came);
  if (in.active) {
    const std::size_t of_item = std::min(bytes, in.share.bytes() - in.moved);
    in.moved += of_item;
    bytes -= of_item;
    if (in.moved == in.share.bytes()) finish_item(in);
  }
  in.header_moved += bytes;
  return true;
}

// ---------------------------------------------------------------------------------------------------
// Reducing and finishing

// Sums this rank's share of a chunk from all ranks' inputs, in the order of ranks, into its output.
void TcpPlane::reduce_share(Share share) {
  const Work& work = works_.work_at(reduced_);
  sources_.resize(static_cast<std::size_t>(size_));
  const bool scaled = !work.prescale.identity();
  if (scaled) own_scaled_.resize(slot_bytes_);
  for_each_piece(
      work, reduced_.cursor, reduced_.at + share.begin, reduced_.at + share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t bytes) {
        for (Lane& lane : lanes_) {
          sources_[static_cast<std::size_t>(lane.in.from)] = slot(lane, reduced_.chunk) + at;
        }
        const std::byte* own = segment.in + within;
        if (scaled) {
          move_scaled(work.dtype, own_scaled_.data(), own, bytes, work.prescale);
          own = own_scaled_.data();
        }
        sources_[static_cast<std::size_t>(rank_)] = own;
        kernels().sum(work.dtype, segment.out + within, sources_.data(), size_,
                      bytes / dtype_size(work.dtype), work.postscale);
      });
}

bool TcpPlane::reduce() {
  bool moved = false;
  while (works_.holds(reduced_)) {
    for (const Lane& lane : lanes_) {
      if (lane.in.places[kInput].chunk <= reduced_.chunk) return moved;
    }
    reduce_share(share_of(rank_, size_, works_.chunk_bytes(reduced_)));
    do {
      works_.move_on(reduced_);
    } while (works_.holds(reduced_) && !has_share(reduced_));
    moved = true;
  }
  return moved;
}

bool TcpPlane::finish(const SegmentDone& done) {
  bool moved = false;
  for (; works_.holds(finished_); moved = true) {
    const std::uint64_t chunk = finished_.chunk;
    if (reduced_.chunk <= chunk) return moved;
    for (const Lane& lane : lanes_) {
      for (const Kind kind : {kInput, kResult}) {
        if (lane.in.places[kind].chunk <= chunk || lane.out.places[kind].chunk <= chunk)
          return moved;
      }
    }
    works_.finish_chunk(finished_, done);
  }
  return moved;
}

// A connection that ended is a failure only when the oldest work needs it and nothing else moves: a
// peer that is done with everything may go, and what it sent before it went still counts.
void TcpPlane::check_streams() {
  for (const Lane& lane : lanes_) {
    for (const Flow* flow : {&lane.in, &lane.out}) {
      if (flow->error == 0) continue;
      if (!works_.in_oldest(flow->places[kInput]) && !works_.in_oldest(flow->places[kResult]))
        continue;
      const bool closed = flow->error == ECONNRESET || flow->error == EPIPE;
      failure_ = Status::error(Code::kPeerLost,
                               lane.name + (closed ? " closed its connection in the midst of an "
                                                     "operation: it shut down, died or was killed"
                                                   : describe_lost_connection(flow->error)));
      return;
    }
  }
}

bool TcpPlane::advance(const SegmentDone& done) {
  if (works_.empty() || !failure_.ok()) return false;
  const FloatEnvironment ieee;
  settle();
  bool moved = false;
  for (int round = 0; round < kMaxRounds && failure_.ok(); ++round) {
    bool now = false;
    for (Lane& lane : lanes_) now |= receive(lane);
    now |= reduce();
    for (Lane& lane : lanes_) now |= send(lane);
    now |= finish(done);
    if (!now) {
      check_streams();
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
    const bool awaited = works_.holds(in.places[kInput]) || works_.holds(in.places[kResult]);
    const bool readable =
        in.error == 0 &&
        (in.active || (awaited && (in.header_moved < sizeof(Header) || can_open(in))));
    const bool writable = lane.out.error == 0 && lane.out.active;
    const int events = (readable ? POLLIN : 0) | (writable ? POLLOUT : 0);
    if (events != 0) fds.push_back({lane.socket.get(), static_cast<short>(events), 0});
  }
}

}  // namespace khorovod
