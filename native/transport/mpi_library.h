// The MPI library that mpi4py has loaded, called without an mpi.h. Handles come from mpi4py as
// machine words; how long they are (int in MPICH and its kin, a pointer in Open MPI and in MPI's
// standard ABI) it says too, and that is all that differs between the ABIs for the few functions
// that are used here.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "transport/message_passing.h"

namespace khorovod {

// What mpi4py knows.
struct MpiHandles {
  std::string module;      // the file of its extension module, which is linked with the library
  std::size_t bytes = 0;   // of a handle
  std::uint64_t comm = 0;  // the communicator
  std::uint64_t byte = 0;  // the data type MPI_BYTE
};

// Nothing is taken over: the communicator must stay, and MPI must not be finalised before.
Status open_mpi_library(const MpiHandles& handles, std::unique_ptr<MessagePassing>& library);

}  // namespace khorovod
