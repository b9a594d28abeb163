// Puts a rank's world together on connected, authenticated sockets.
#pragma once

#include <vector>

#include "engine/engine.h"

namespace khorovod {

// `wake` is this rank's eventfd; `control[r]` and `data[r]` are connected with rank r, the own
// entries are empty. `peers` are the other ranks. Without `data` the world has no plane yet.
World make_tcp_world(int rank, int size, UniqueFd wake, std::vector<UniqueFd> control,
                     std::vector<UniqueFd> data, std::vector<Peer> peers);

}  // namespace khorovod
