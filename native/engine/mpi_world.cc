#include "engine/mpi_world.h"

#include "planes/mpi_plane.h"

namespace khorovod {

void use_mpi_plane(World& world, std::unique_ptr<MessagePassing> mpi, int tag) {
  std::vector<std::string> names(static_cast<std::size_t>(world.size));
  for (const Peer& peer : world.peers) names[static_cast<std::size_t>(peer.rank)] = describe(peer);
  world.plane =
      std::make_unique<MpiPlane>(world.rank, world.size, std::move(mpi), tag, std::move(names));
}

}  // namespace khorovod
