#include "engine/tcp_world.h"

#include "engine/tcp_link.h"
#include "planes/tcp_plane.h"

namespace khorovod {

World make_tcp_world(int rank, int size, UniqueFd wake, std::vector<UniqueFd> control,
                     std::vector<UniqueFd> data, std::vector<Peer> peers) {
  std::vector<std::string> names(static_cast<std::size_t>(size));
  for (const Peer& peer : peers) names[static_cast<std::size_t>(peer.rank)] = describe(peer);
  World world;
  world.rank = rank;
  world.size = size;
  world.peers = std::move(peers);
  world.wake = std::move(wake);
  auto plane = std::make_unique<TcpPlane>(rank, size, std::move(data), names);
  auto link = std::make_unique<TcpLink>(rank, size, std::move(control), std::move(names),
                                        world.wake.get(), plane->descriptors());
  world.close_descriptors = [link = link.get(), plane = plane.get()] {
    link->close_descriptors();
    plane->close_descriptors();
  };
  world.link = std::move(link);
  world.plane = std::move(plane);
  return world;
}

}  // namespace khorovod
