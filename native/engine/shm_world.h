// Puts a rank's world together on a shared-memory domain.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "shm/region.h"

namespace khorovod {

// `wake` is this rank's eventfd; `eventfds[r]` is rank r's, as this process knows it.
World make_shm_world(int rank, int size, std::shared_ptr<ShmRegion> region, UniqueFd wake,
                     std::vector<UniqueFd> eventfds, std::vector<Peer> peers);

}  // namespace khorovod
