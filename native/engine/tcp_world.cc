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
  std::vector<int> companions;
  std::function<void()> close_plane = [] {};
  if (!data.empty()) {
    auto plane = std::make_unique<TcpPlane>(rank, size, std::move(data), names);
    companions = plane->descriptors();
    close_plane = [plane = plane.get()] { plane->close_descriptors(); };
    world.plane = std::move(plane);
  }
  auto link = std::make_unique<TcpLink>(rank, size, std::move(control), std::move(names),
                                        world.wake.get(), std::move(companions));
  world.close_descriptors = [link = link.get(), close_plane] {
    link->close_descriptors();
    close_plane();
  };
  world.link = std::move(link);
  return world;
}

}  // namespace khorovod
