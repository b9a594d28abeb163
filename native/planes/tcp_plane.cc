#include "planes/tcp_plane.h"

#include <cerrno>

#include "transport/socket_io.h"

namespace khorovod {

TcpPlane::TcpPlane(int rank, int size, std::vector<UniqueFd> sockets,
                   std::vector<std::string> names, std::size_t chunk_bytes)
    : ItemPlane(rank, size, std::move(names), chunk_bytes) {
  for (const ItemLane& lane : lanes_) {
    UniqueFd& socket = sockets[static_cast<std::size_t>(lane.rank)];
    prepare_stream_socket(socket.get());
    connections_.push_back({.socket = std::move(socket)});
  }
}

std::vector<int> TcpPlane::descriptors() const {
  std::vector<int> fds;
  for (const TcpLane& tcp : connections_) fds.push_back(tcp.socket.get());
  return fds;
}

void TcpPlane::close_descriptors() {
  for (TcpLane& tcp : connections_) tcp.socket.reset();
}

void TcpPlane::abort() {
  // The connections stay open until the plane goes: their end would reach the peers before the
  // reason.
  works_.clear();
  for (TcpLane& tcp : connections_) tcp.in.active = tcp.out.active = false;
}

bool TcpPlane::receive_items() {
  bool moved = false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) moved |= receive(line(i));
  return moved;
}

bool TcpPlane::send_items() {
  bool moved = false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) moved |= send(line(i));
  return moved;
}

// A connection that ended is a failure only when the oldest work needs it and nothing else moves: a
// peer that is done with everything may go, and what it sent before it went still counts.
void TcpPlane::look_for_failure() {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const ItemLane& lane = lanes_[i];
    const auto ended = [&](const Flow& flow, const Places& places) {
      if (flow.error == 0) return false;
      if (!works_.in_oldest(places[kInput]) && !works_.in_oldest(places[kResult])) return false;
      const bool closed = flow.error == ECONNRESET || flow.error == EPIPE;
      failure_ = Status::lost(lane.rank,
                              lane.name + (closed ? " closed its connection in the midst of an "
                                                    "operation: it shut down, died or was killed"
                                                  : describe_lost_connection(flow.error)));
      return true;
    };
    if (ended(connections_[i].in, lane.in) || ended(connections_[i].out, lane.out)) return;
  }
}

void TcpPlane::wanted_fds(std::vector<pollfd>& fds) const {
  if (works_.empty() || !failure_.ok()) return;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const ItemLane& lane = lanes_[i];
    const TcpLane& tcp = connections_[i];
    const bool readable =
        tcp.in.error == 0 &&
        (tcp.in.active || (awaited(lane) && (!tcp.in.header_complete() || can_open(lane, tcp.in))));
    const bool writable = tcp.out.error == 0 && tcp.out.active;
    const int events = (readable ? POLLIN : 0) | (writable ? POLLOUT : 0);
    if (events != 0) fds.push_back({tcp.socket.get(), static_cast<short>(events), 0});
  }
}

}  // namespace khorovod
