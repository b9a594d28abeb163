// Puts MPI in the place of a world's data plane; ranks hear, wake and watch each other as before.
#pragma once

#include "engine/engine.h"
#include "transport/message_passing.h"

namespace khorovod {

// `mpi` numbers the ranks like the world. `tag` as for MpiPlane.
void use_mpi_plane(World& world, std::unique_ptr<MessagePassing> mpi, int tag);

}  // namespace khorovod
