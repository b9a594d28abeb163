// Items over one connected stream socket per pair of ranks, each preceded by a header that names
// the plan and the chunk within it. One item is under way per direction; a chunk is finished when
// all of its items are received and handed to the kernel.
#pragma once

#include <sys/uio.h>

#include "planes/tcp_lane.h"

namespace khorovod {

class TcpPlane : public ItemPlane {
 public:
  // `sockets[r]` is connected with rank r, `names[r]` describes it in messages; the own entries are
  // not used. `chunk_bytes` as for ItemPlane.
  TcpPlane(int rank, int size, std::vector<UniqueFd> sockets, std::vector<std::string> names,
           std::size_t chunk_bytes = kChunkBytes);

  // For whoever closes the connections in order.
  std::vector<int> descriptors() const;
  // For a forked child, which must not keep its parent's connections open; nothing else works
  // after.
  void close_descriptors();

  const char* name() const override { return "tcp"; }
  bool notices_departures() const override { return true; }
  void abort() override;
  void wanted_fds(std::vector<pollfd>& fds) const override;

 private:
  using Flow = TcpFlow;

  // A lane with its connection.
  struct Line {
    ItemLane& lane;
    TcpLane& tcp;
  };
  Line line(std::size_t i) { return {lanes_[i], connections_[i]}; }

  bool receive_items() override;
  bool send_items() override;
  void look_for_failure() override;

  bool awaited(const ItemLane& lane) const;
  bool can_open(const ItemLane& lane, const Flow& in) const;
  bool open_item(Line line);
  void end_incoming(Line line);
  bool receive(Line line);
  bool choose_item(Line line);
  bool send(Line line);
  void place_outgoing(Line line, const Place& place);
  void place_incoming(Line line, const Place& place);
  bool add_pieces(const Flow& flow, const Place& place);
  bool add_tensor_pieces(const Flow& flow, const Place& place);
  void add_header(Flow& flow);

  std::vector<TcpLane> connections_;  // by lane
  std::vector<iovec> pieces_;         // scratch of one call to the kernel
};

}  // namespace khorovod
