// Ranks of one process that know each other by sockets only, every pair connected twice: for
// control and for data.
#pragma once

#include <sys/eventfd.h>

#include <vector>

#include "engine/tcp_world.h"
#include "tests/check.h"
#include "tests/local_world.h"
#include "tests/tcp_mesh.h"

namespace khorovod::testing {

inline std::vector<World> worlds_of(Mesh control, Mesh data) {
  const int size = static_cast<int>(control.size());
  std::vector<World> worlds;
  for (int r = 0; r < size; ++r) {
    const auto at = static_cast<std::size_t>(r);
    worlds.push_back(make_tcp_world(r, size, UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
                                    std::move(control[at]), std::move(data[at]),
                                    peers_without(r, size)));
  }
  return worlds;
}

inline std::vector<World> make_tcp_worlds(int size) {
  return worlds_of(make_tcp_mesh(size), make_tcp_mesh(size));
}

}  // namespace khorovod::testing
