// Tests of the engine that are run in every kind of world: shared memory, sockets, MPI.
#pragma once

#include "tests/local_world.h"
#include "tests/mpi_worlds.h"
#include "tests/tcp_worlds.h"

// The body is run with `make` for each kind of world.
#define TEST_IN_EVERY_WORLD(name)                                                         \
  static void name(const WorldMaker& make);                                               \
  static const Register register_shm_##name("shm." #name, [] { name(make_shm_worlds); }); \
  static const Register register_tcp_##name("tcp." #name, [] { name(make_tcp_worlds); }); \
  static const Register register_mpi_##name("mpi." #name, [] { name(make_mpi_worlds); }); \
  static void name(const WorldMaker& make)

namespace khorovod::testing {

inline void run(Engine& engine, const OperationRef& operation) {
  CHECK_EQ(engine.submit(operation, true).message, "");
  CHECK_EQ(wait(engine, operation).message, "");
}

}  // namespace khorovod::testing
