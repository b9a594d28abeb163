#include "engine/shm_world.h"

#include "engine/shm_link.h"
#include "planes/shm_plane.h"
#include "shm/domain.h"

namespace khorovod {

namespace {

struct Backing {
  std::vector<UniqueFd> eventfds;
  ShmDomain domain;
};

std::vector<int> borrowed(const std::vector<UniqueFd>& fds) {
  std::vector<int> result;
  for (const UniqueFd& fd : fds) result.push_back(fd.get());
  return result;
}

}  // namespace

World make_shm_world(int rank, int size, std::shared_ptr<ShmRegion> region, UniqueFd wake,
                     std::vector<UniqueFd> eventfds, std::vector<Peer> peers) {
  ShmDomain domain(std::move(region), rank, size, borrowed(eventfds));
  auto backing = std::make_shared<Backing>(Backing{std::move(eventfds), std::move(domain)});
  World world;
  world.rank = rank;
  world.size = size;
  world.peers = std::move(peers);
  world.wake = std::move(wake);
  world.link = std::make_unique<ShmLink>(backing->domain);
  world.plane = std::make_unique<ShmPlane>(backing->domain);
  world.backing = backing;
  world.close_descriptors = [backing] { backing->eventfds.clear(); };
  return world;
}

}  // namespace khorovod
