#include "planes/mpi_plane.h"

namespace khorovod {

namespace {

// A rank that has left, and still nothing came for so long, will not send anything.
constexpr Nanoseconds kPatience = kSecond;

// What an abandoned plane's messages get to end by themselves.
constexpr Nanoseconds kEndTime = 20 * kMillisecond;

constexpr ItemKind kKinds[] = {kResult, kInput};  // results first: others wait for them

}  // namespace

MpiPlane::MpiPlane(int rank, int size, std::unique_ptr<MessagePassing> mpi, int tag,
                   std::vector<std::string> names, std::size_t chunk_bytes)
    : ItemPlane(rank, size, std::move(names), chunk_bytes),
      mpi_(std::move(mpi)),
      tag_(tag),
      item_bytes_(std::max(chunk_bytes, slot_bytes_)),
      routes_(lanes_.size()) {}

void MpiPlane::submit(Work work) {
  if (works_.empty()) moved_ = now_ns();
  ItemPlane::submit(std::move(work));
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    for (const ItemKind kind : kKinds) {
      pass_over(lanes_[i], Direction::kIn, kind, routes_[i].in[kind].next);
      pass_over(lanes_[i], Direction::kOut, kind, routes_[i].out[kind].next);
    }
  }
}

void MpiPlane::fail(const ItemLane& lane, const char* what, int error) {
  failure_ = Status::error(Code::kInternal, std::string("MPI cannot ") + what + " " + lane.name +
                                                ": " + mpi_->describe(error));
}

// Of the next item to start; free, since at most kDepth are under way.
std::byte* MpiPlane::next_buffer(Route& route) {
  return route.memory.of(kDepth * item_bytes_) + route.count++ % kDepth * item_bytes_;
}

bool MpiPlane::oldest_is_done(const ItemLane& lane, Route& route, std::size_t& bytes) {
  if (route.started.empty() || !failure_.ok()) return false;
  bool done = false;
  const int error = mpi_->test(route.started.front().request, done, bytes);
  if (error != 0) fail(lane, "exchange messages with", error);
  return error == 0 && done;
}

// ---------------------------------------------------------------------------------------------------
// Receiving

bool MpiPlane::receive_items() {
  bool moved = false;
  for (std::size_t i = 0; i < lanes_.size() && failure_.ok(); ++i) {
    for (const ItemKind kind : kKinds) {
      Route& route = routes_[i].in[kind];
      moved |= take_received(lanes_[i], kind, route);
      moved |= start_receives(lanes_[i], kind, route);
    }
  }
  if (moved) moved_ = now_ns();
  return moved;
}

bool MpiPlane::take_received(ItemLane& lane, ItemKind kind, Route& route) {
  bool moved = false;
  for (std::size_t bytes = 0; oldest_is_done(lane, route, bytes); moved = true) {
    const Shipment shipment = route.started.front();
    route.started.pop_front();
    Place& place = lane.in[kind];
    const Work& work = works_.at(place).work;
    if (bytes != shipment.bytes) {
      failure_ = Status::error(Code::kInternal, "data from " + lane.name + " make no sense: " +
                                                    std::to_string(bytes) + " bytes came, where " +
                                                    std::to_string(shipment.bytes) + " were due");
      return true;
    }
    // What is to be reduced stays where it is.
    const bool final = kind == kInput ? !reduces(work) : !only_acknowledges(work, kind);
    if (final) unpack(work, shipment.cargo, shipment.buffer);
    go_on(lane, Direction::kIn, kind, place);
  }
  return moved;
}

bool MpiPlane::start_receives(ItemLane& lane, ItemKind kind, Route& route) {
  bool moved = false;
  const std::size_t i = static_cast<std::size_t>(&lane - lanes_.data());
  while (works_.holds(route.next) && route.started.size() < kDepth && failure_.ok()) {
    const Work& work = works_.at(route.next).work;
    const bool to_slot = kind == kInput && reduces(work);
    // The slot is free when the result of what it held has been packed.
    if (to_slot && !has_room(lane, route.next, routes_[i].out[kResult].next)) break;
    const Cargo cargo = cargo_at(lane, Direction::kIn, kind, route.next);
    std::byte* const buffer = to_slot ? slot(lane, route.next) : next_buffer(route);
    Shipment shipment{0, cargo, buffer, item_bytes(work, kind, cargo)};
    if (const int error = mpi_->start_receive(buffer, shipment.bytes, lane.rank,
                                              tag_ + static_cast<int>(kind), shipment.request);
        error != 0) {
      fail(lane, "receive from", error);
      break;
    }
    route.started.push_back(shipment);
    go_on(lane, Direction::kIn, kind, route.next);
    moved = true;
  }
  return moved;
}

// ---------------------------------------------------------------------------------------------------
// Sending

bool MpiPlane::send_items() {
  bool moved = false;
  for (std::size_t i = 0; i < lanes_.size() && failure_.ok(); ++i) {
    for (const ItemKind kind : kKinds) {
      Route& route = routes_[i].out[kind];
      moved |= take_sent(lanes_[i], kind, route);
      moved |= start_sends(lanes_[i], kind, route);
    }
  }
  if (moved) moved_ = now_ns();
  return moved;
}

bool MpiPlane::take_sent(ItemLane& lane, ItemKind kind, Route& route) {
  bool moved = false;
  for (std::size_t bytes = 0; oldest_is_done(lane, route, bytes); moved = true) {
    route.started.pop_front();
    go_on(lane, Direction::kOut, kind, lane.out[kind]);
  }
  return moved;
}

bool MpiPlane::start_sends(ItemLane& lane, ItemKind kind, Route& route) {
  bool moved = false;
  while (route.started.size() < kDepth && failure_.ok() &&
         (kind == kInput ? may_send_input(lane, route.next) : may_send_result(route.next))) {
    const Work& work = works_.at(route.next).work;
    const Cargo cargo = cargo_at(lane, Direction::kOut, kind, route.next);
    Shipment shipment{0, cargo, next_buffer(route), item_bytes(work, kind, cargo)};
    pack(lane, kind, route.next, shipment);
    if (const int error = mpi_->start_send(shipment.buffer, shipment.bytes, lane.rank,
                                           tag_ + static_cast<int>(kind), shipment.request);
        error != 0) {
      fail(lane, "send to", error);
      break;
    }
    route.started.push_back(shipment);
    go_on(lane, Direction::kOut, kind, route.next);
    moved = true;
  }
  return moved;
}

void MpiPlane::pack(ItemLane& lane, ItemKind kind, const Place& place, const Shipment& shipment) {
  const ItemWork& cut = works_.at(place);
  const Work& work = cut.work;
  if (shipment.bytes == 0) return;
  if (kind == kResult && work.wire != work.dtype) {
    cached_copy(shipment.buffer, slot(lane, place), shipment.bytes);
    return;
  }
  const bool from_inputs =
      kind == kInput && (work.movement != Movement::kBroadcast || work.root == cut.me);
  if (from_inputs) {
    pack_inputs(work, shipment.cargo, shipment.buffer);
  } else {
    pack_outputs(work, shipment.cargo, shipment.buffer);
  }
}

// ---------------------------------------------------------------------------------------------------
// Ending

int MpiPlane::awaited_in_vain(const std::function<bool(int)>& has_left) const {
  if (now_ns() - moved_ < kPatience) return -1;
  for (const ItemLane& lane : lanes_) {
    if (in_oldest_work(lane) && has_left(lane.rank)) return lane.rank;
  }
  return -1;
}

// Receives are taken back; what cannot be ended keeps its memory.
void MpiPlane::abort() {
  works_.clear();
  const Nanoseconds deadline = now_ns() + kEndTime;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    for (std::array<Route, 2>* const way : {&routes_[i].in, &routes_[i].out}) {
      for (Route& route : *way) {
        const bool incoming = way == &routes_[i].in;
        while (!route.started.empty()) {
          MessagePassing::Request& request = route.started.front().request;
          bool done = false;
          std::size_t bytes = 0;
          if (incoming && mpi_->cancel(request) != 0) break;
          int error = 0;
          do {
            error = mpi_->test(request, done, bytes);
          } while (error == 0 && !done && now_ns() < deadline);
          if (error != 0 || !done) break;
          route.started.pop_front();
        }
        if (route.started.empty()) continue;
        mpi_->keep(route.memory.take());
        mpi_->keep(lanes_[i].staging.take());
        route.started.clear();
      }
    }
  }
}

}  // namespace khorovod
