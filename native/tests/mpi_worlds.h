// Ranks of one process that share memory for their messages, and move tensors by an MPI for
// threads.
#pragma once

#include "engine/mpi_world.h"
#include "tests/fake_mpi.h"
#include "tests/local_world.h"

namespace khorovod::testing {

inline std::vector<World> make_mpi_worlds(int size) {
  std::vector<World> worlds = make_shm_worlds(size);
  const auto office = std::make_shared<PostOffice>();
  for (World& world : worlds) {
    use_mpi_plane(world, std::make_unique<FakeMpi>(world.rank, office), 6);
  }
  return worlds;
}

}  // namespace khorovod::testing
