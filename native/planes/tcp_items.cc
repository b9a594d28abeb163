// What the TCP plane sends and receives: items, one after the other on each connection.
#include "planes/tcp_plane.h"
#include "transport/socket_io.h"

namespace khorovod {

namespace {

constexpr std::size_t kMaxPieces = 256;  // in one call to the kernel

std::string describe(const ItemHeader& header) {
  return std::string(header.kind() == kInput ? "the input" : "the result") + " of chunk " +
         std::to_string(header.what >> 1) + " of plan " + std::to_string(header.plan) + " (" +
         std::to_string(header.bytes) + " bytes)";
}

}  // namespace

// What the next item of a kind carries; there must be a work for it.
Cargo TcpPlane::next_cargo(const Lane& lane, const Flow& flow, ItemKind kind) const {
  const Place& place = flow.places[kind];
  const TcpWork& cut = works_.at(place);
  const int peer = cut.work.members->index_of(lane.rank);
  if (peer < 0) return {};
  const bool incoming = &flow == &lane.in;
  return cargo_of(cut, kind, incoming ? peer : cut.me, incoming ? cut.me : peer, place.chunk);
}

void TcpPlane::add_header(Flow& flow) {
  pieces_.push_back({reinterpret_cast<std::byte*>(&flow.header) + flow.header_moved,
                     sizeof(ItemHeader) - flow.header_moved});
}

// Adds the rest of the item under way; false if it has too many pieces for one call.
bool TcpPlane::add_pieces(const Flow& flow) {
  if (flow.moved == flow.bytes) return true;
  if (flow.buffer == nullptr) return add_tensor_pieces(flow);
  pieces_.push_back({flow.buffer + flow.moved, flow.bytes - flow.moved});
  return true;
}

bool TcpPlane::add_tensor_pieces(const Flow& flow) {
  const std::size_t element = dtype_size(works_.at(flow.place()).work.wire);
  const std::vector<Segment>& segments = flow.cargo.stream->segments;
  // In bytes from here on: the kernel may have stopped within an element.
  std::size_t at = flow.cargo.share.begin * element + flow.moved;
  const std::size_t end = flow.cargo.share.end * element;
  auto segment = std::upper_bound(segments.begin(), segments.end(), at / element,
                                  [](std::size_t e, const Segment& s) { return e < s.at; }) -
                 1;
  for (; at < end; ++segment) {
    if (pieces_.size() >= kMaxPieces) return false;
    const std::size_t within = at - segment->at * element;
    const std::size_t bytes = std::min(segment->count * element - within, end - at);
    const std::byte* memory = flow.in_inputs ? segment->in : segment->out;
    pieces_.push_back({const_cast<std::byte*>(memory) + within, bytes});
    at += bytes;
  }
  return true;
}

void TcpPlane::finish_item(Lane& lane, Flow& flow) {
  flow.active = false;
  works_.move_on(flow.places[flow.kind]);
  pass_over(lane, flow);
}

// ---------------------------------------------------------------------------------------------------
// Sending

// The next input is here, and the peer has a place for it.
bool TcpPlane::may_send_input(Lane& lane) {
  const Place& input = lane.out.places[kInput];
  const TcpWork& cut = works_.at(input);
  if (reduces(cut.work)) {
    return joint_number(lane, input) < joint_number(lane, lane.in.places[kResult]) + kWindow;
  }
  if (cut.work.movement != Movement::kBroadcast || cut.work.root == cut.me) return true;
  const auto parent = static_cast<std::size_t>(broadcast_parent(cut, cut.me));
  return lane_of(cut.work.members->ranks[parent]).in.places[kInput] > input;
}

// Says where the item to be sent is, and converts it if it does not travel as it is.
void TcpPlane::place_outgoing(Lane& lane, const Work& work) {
  Flow& out = lane.out;
  out.buffer = nullptr;
  if (out.kind == kResult) {
    out.in_inputs = false;
    if (work.wire != work.dtype) out.buffer = slot(lane, out.place());
    return;
  }
  const TcpWork& cut = works_.at(out.place());
  out.in_inputs = work.movement != Movement::kBroadcast || work.root == cut.me;
  if (!reduces(work) || travels_as_it_is(work)) return;
  out.buffer = lane.outbox.of(slot_bytes_);
  const Share& share = out.cargo.share;
  for_each_piece(
      *out.cargo.stream, share.begin, share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
        to_wire(work, out.buffer + at * dtype_size(work.wire),
                segment.in + within * dtype_size(work.dtype), count);
      });
}

bool TcpPlane::choose_item(Lane& lane) {
  Flow& out = lane.out;
  if (works_.holds(out.places[kResult]) && out.places[kResult] < own_) {
    out.kind = kResult;
  } else if (works_.holds(out.places[kInput]) && may_send_input(lane)) {
    out.kind = kInput;
  } else {
    return false;
  }
  const Work& work = works_.at(out.place()).work;
  out.active = true;
  out.cargo = next_cargo(lane, out, out.kind);
  out.bytes = item_bytes(work, out.kind, out.cargo);
  out.moved = 0;
  out.header = ItemHeader::of(work, out.place().chunk, out.kind, out.bytes);
  out.header_moved = 0;
  place_outgoing(lane, work);
  return true;
}

bool TcpPlane::send(Lane& lane) {
  Flow& out = lane.out;
  if (out.error != 0 || (!out.active && !choose_item(lane))) return false;
  pieces_.clear();
  if (!out.header_complete()) add_header(out);
  add_pieces(out);
  const std::ptrdiff_t sent = send_some(lane.socket.get(), pieces_.data(), pieces_.size());
  if (sent < 0) out.error = static_cast<int>(-sent);
  if (sent <= 0) return false;
  const auto bytes = static_cast<std::size_t>(sent);
  const std::size_t of_header = std::min(bytes, sizeof(ItemHeader) - out.header_moved);
  out.header_moved += of_header;
  out.moved += bytes - of_header;
  if (out.header_complete() && out.moved == out.bytes) finish_item(lane, out);
  return true;
}

// ---------------------------------------------------------------------------------------------------
// Receiving

bool TcpPlane::awaited(const Flow& in) const {
  return works_.holds(in.places[kInput]) || works_.holds(in.places[kResult]);
}

// False while the next item belongs to a plan that this rank has not heard of.
bool TcpPlane::can_open(const Flow& in) const { return works_.holds(in.places[in.header.kind()]); }

// Says where the item to be received goes.
void TcpPlane::place_incoming(Lane& lane, const Work& work) {
  Flow& in = lane.in;
  in.buffer = nullptr;
  in.in_inputs = false;
  if (in.kind == kInput) {
    if (reduces(work)) in.buffer = slot(lane, in.place());
  } else if (work.wire != work.dtype) {
    in.buffer = lane.inbox.of(slot_bytes_);
  }
}

// The next header is here: sees where its item goes. False if the header makes no sense.
bool TcpPlane::open_item(Lane& lane) {
  Flow& in = lane.in;
  in.kind = in.header.kind();
  const Place& place = in.place();
  const Work& work = works_.at(place).work;
  const Cargo cargo = next_cargo(lane, in, in.kind);
  const std::size_t bytes = item_bytes(work, in.kind, cargo);
  const ItemHeader due = ItemHeader::of(work, place.chunk, in.kind, bytes);
  bool sane = in.header == due;
  if (in.kind == kResult) {
    sane = sane && lane.out.places[kInput] > place;  // it had our input
  } else if (reduces(work)) {
    sane =
        sane && joint_number(lane, place) < joint_number(lane, lane.out.places[kResult]) + kWindow;
  }
  if (!sane) {
    failure_ = Status::error(Code::kInternal,
                             "data from " + lane.name + " make no sense: " + describe(in.header) +
                                 " came, where " + describe(due) +
                                 (in.header == due ? " is too early" : " was due"));
    return false;
  }
  in.active = true;
  in.cargo = cargo;
  in.bytes = bytes;
  in.moved = 0;
  in.header_moved = 0;
  place_incoming(lane, work);
  return true;
}

void TcpPlane::end_incoming(Lane& lane) {
  const Flow& in = lane.in;
  const Work& work = works_.at(in.place()).work;
  if (in.kind == kResult && in.buffer != nullptr) {
    for_each_piece(
        *in.cargo.stream, in.cargo.share.begin, in.cargo.share.end,
        [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
          from_wire(work, segment.out + within * dtype_size(work.dtype),
                    in.buffer + at * dtype_size(work.wire), count);
        });
  }
  finish_item(lane, lane.in);
}

bool TcpPlane::receive(Lane& lane) {
  Flow& in = lane.in;
  if (in.error != 0) return false;
  if (!in.active) {
    // What nobody here waits for stays in the kernel.
    if (!awaited(in)) return false;
    if (in.header_complete()) {
      if (!can_open(in) || !open_item(lane)) return false;
      if (in.bytes == 0) {
        end_incoming(lane);
        return true;
      }
    }
  }
  pieces_.clear();
  // Along with the end of an item comes the next header.
  if (!in.active || add_pieces(in)) add_header(in);
  const std::ptrdiff_t came = receive_some(lane.socket.get(), pieces_.data(), pieces_.size());
  if (came < 0) in.error = static_cast<int>(-came);
  if (came <= 0) return false;
  auto bytes = static_cast<std::size_t>(came);
  if (in.active) {
    const std::size_t of_item = std::min(bytes, in.bytes - in.moved);
    in.moved += of_item;
    bytes -= of_item;
    if (in.moved == in.bytes) end_incoming(lane);
  }
  in.header_moved += bytes;
  return true;
}

}  // namespace khorovod
