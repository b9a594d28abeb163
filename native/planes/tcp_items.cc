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

void TcpPlane::add_header(Flow& flow) {
  pieces_.push_back({reinterpret_cast<std::byte*>(&flow.header) + flow.header_moved,
                     sizeof(ItemHeader) - flow.header_moved});
}

// Adds the rest of the item under way; false if it has too many pieces for one call.
bool TcpPlane::add_pieces(const Flow& flow, const Place& place) {
  if (flow.moved == flow.bytes) return true;
  if (flow.buffer == nullptr) return add_tensor_pieces(flow, place);
  pieces_.push_back({flow.buffer + flow.moved, flow.bytes - flow.moved});
  return true;
}

bool TcpPlane::add_tensor_pieces(const Flow& flow, const Place& place) {
  const std::size_t element = dtype_size(works_.at(place).work.wire);
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

// ---------------------------------------------------------------------------------------------------
// Sending

// Says where the item to be sent is, and converts it if it does not travel as it is.
void TcpPlane::place_outgoing(Line line, const Place& place) {
  const ItemWork& cut = works_.at(place);
  const Work& work = cut.work;
  Flow& out = line.tcp.out;
  out.buffer = nullptr;
  if (out.kind == kResult) {
    out.in_inputs = false;
    if (work.wire != work.dtype) out.buffer = slot(line.lane, place);
    return;
  }
  out.in_inputs = work.movement != Movement::kBroadcast || work.root == cut.me;
  if (!reduces(work) || travels_as_it_is(work)) return;
  out.buffer = line.tcp.outbox.of(slot_bytes_);
  pack_inputs(work, out.cargo, out.buffer);
}

bool TcpPlane::choose_item(Line line) {
  Flow& out = line.tcp.out;
  const Places& next = line.lane.out;
  if (may_send_result(next[kResult])) {
    out.kind = kResult;
  } else if (may_send_input(line.lane, next[kInput])) {
    out.kind = kInput;
  } else {
    return false;
  }
  const Place& place = next[out.kind];
  const Work& work = works_.at(place).work;
  out.active = true;
  out.cargo = cargo_at(line.lane, Direction::kOut, out.kind, place);
  out.bytes = item_bytes(work, out.kind, out.cargo);
  out.moved = 0;
  out.header = ItemHeader::of(work, place.chunk, out.kind, out.bytes);
  out.header_moved = 0;
  place_outgoing(line, place);
  return true;
}

bool TcpPlane::send(Line line) {
  Flow& out = line.tcp.out;
  if (out.error != 0 || (!out.active && !choose_item(line))) return false;
  Place& place = line.lane.out[out.kind];
  pieces_.clear();
  if (!out.header_complete()) add_header(out);
  add_pieces(out, place);
  const std::ptrdiff_t sent = send_some(line.tcp.socket.get(), pieces_.data(), pieces_.size());
  if (sent < 0) out.error = static_cast<int>(-sent);
  if (sent <= 0) return false;
  const auto bytes = static_cast<std::size_t>(sent);
  const std::size_t of_header = std::min(bytes, sizeof(ItemHeader) - out.header_moved);
  out.header_moved += of_header;
  out.moved += bytes - of_header;
  if (out.header_complete() && out.moved == out.bytes) {
    out.active = false;
    go_on(line.lane, Direction::kOut, out.kind, place);
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------
// Receiving

bool TcpPlane::awaited(const ItemLane& lane) const {
  return works_.holds(lane.in[kInput]) || works_.holds(lane.in[kResult]);
}

// False while the next item belongs to a plan that this rank has not heard of.
bool TcpPlane::can_open(const ItemLane& lane, const Flow& in) const {
  return works_.holds(lane.in[in.header.kind()]);
}

// Says where the item to be received goes.
void TcpPlane::place_incoming(Line line, const Place& place) {
  const Work& work = works_.at(place).work;
  Flow& in = line.tcp.in;
  in.buffer = nullptr;
  in.in_inputs = false;
  if (in.kind == kInput) {
    if (reduces(work)) in.buffer = slot(line.lane, place);
  } else if (work.wire != work.dtype && !only_acknowledges(work, kResult)) {
    in.buffer = line.tcp.inbox.of(slot_bytes_);
  }
}

// The next header is here: sees where its item goes. False if the header makes no sense.
bool TcpPlane::open_item(Line line) {
  const ItemLane& lane = line.lane;
  Flow& in = line.tcp.in;
  in.kind = in.header.kind();
  const Place& place = lane.in[in.kind];
  const Work& work = works_.at(place).work;
  const Cargo cargo = cargo_at(lane, Direction::kIn, in.kind, place);
  const std::size_t bytes = item_bytes(work, in.kind, cargo);
  const ItemHeader due = ItemHeader::of(work, place.chunk, in.kind, bytes);
  bool sane = in.header == due;
  if (in.kind == kResult) {
    sane = sane && lane.out[kInput] > place;  // it had our input
  } else if (reduces(work)) {
    sane = sane && has_room(lane, place, lane.out[kResult]);
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
  place_incoming(line, place);
  return true;
}

void TcpPlane::end_incoming(Line line) {
  Flow& in = line.tcp.in;
  Place& place = line.lane.in[in.kind];
  if (in.kind == kResult && in.buffer != nullptr) {
    unpack(works_.at(place).work, in.cargo, in.buffer);
  }
  in.active = false;
  go_on(line.lane, Direction::kIn, in.kind, place);
}

bool TcpPlane::receive(Line line) {
  Flow& in = line.tcp.in;
  if (in.error != 0) return false;
  if (!in.active) {
    // What nobody here waits for stays in the kernel.
    if (!awaited(line.lane)) return false;
    if (in.header_complete()) {
      if (!can_open(line.lane, in) || !open_item(line)) return false;
      if (in.bytes == 0) {
        end_incoming(line);
        return true;
      }
    }
  }
  pieces_.clear();
  // Along with the end of an item comes the next header.
  if (!in.active || add_pieces(in, line.lane.in[in.kind])) add_header(in);
  const std::ptrdiff_t came = receive_some(line.tcp.socket.get(), pieces_.data(), pieces_.size());
  if (came < 0) in.error = static_cast<int>(-came);
  if (came <= 0) return false;
  auto bytes = static_cast<std::size_t>(came);
  if (in.active) {
    const std::size_t of_item = std::min(bytes, in.bytes - in.moved);
    in.moved += of_item;
    bytes -= of_item;
    if (in.moved == in.bytes) end_incoming(line);
  }
  in.header_moved += bytes;
  return true;
}

}  // namespace khorovod
