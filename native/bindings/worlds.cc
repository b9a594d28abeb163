#include "bindings/worlds.h"

#include <nanobind/stl/string.h>

#include "engine/mpi_world.h"
#include "engine/shm_world.h"
#include "engine/tcp_world.h"
#include "shm/domain.h"
#include "shm/region.h"
#include "transport/mpi_library.h"

namespace nb = nanobind;

namespace khorovod {

namespace {

EngineOptions options_from(const nb::dict& given) {
  EngineOptions options;
  for (const auto [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "fusion_threshold") {
      options.negotiator.fusion.threshold = nb::cast<std::size_t>(value);
    } else if (name == "groups_alone") {
      options.negotiator.fusion.groups_alone = nb::cast<int>(value) != 0;
    } else if (name == "cache_capacity") {
      options.negotiator.cache_capacity = nb::cast<std::size_t>(value);
    } else if (name == "cycle_time_ns") {
      options.cycle_time = nb::cast<Nanoseconds>(value);
    } else if (name == "spin_ns") {
      options.spin = nb::cast<Nanoseconds>(value);
    } else if (name == "stall_warn_ns") {
      options.stall.warn = nb::cast<Nanoseconds>(value);
    } else if (name == "stall_shutdown_ns") {
      options.stall.shutdown = nb::cast<Nanoseconds>(value);
    } else {
      throw nb::key_error(name.c_str());
    }
  }
  return options;
}

std::vector<UniqueFd> owned(const std::vector<int>& fds) {
  std::vector<UniqueFd> result;
  for (const int fd : fds) result.emplace_back(fd);
  return result;
}

std::vector<Peer> peers_from(const std::vector<PeerTuple>& tuples) {
  std::vector<Peer> peers;
  for (const auto& [rank, host, pid, pidfd] : tuples) {
    peers.push_back({rank, host, pid, UniqueFd(pidfd)});
  }
  return peers;
}

void raise_os_error(const Status& status) {
  PyErr_SetString(PyExc_OSError, status.message.c_str());
  throw nb::python_error();
}

void use_mpi(World& world, const MpiTuple& mpi) {
  const auto& [module, bytes, comm, byte, tag] = mpi;
  std::unique_ptr<MessagePassing> library;
  if (const Status status = open_mpi_library({module, bytes, comm, byte}, library); !status.ok()) {
    raise_os_error(status);
  }
  use_mpi_plane(world, std::move(library), tag);
}

}  // namespace

int create_region(std::size_t bytes) {
  UniqueFd fd;
  if (const Status status = ShmRegion::create(bytes, fd); !status.ok()) raise_os_error(status);
  return fd.release();
}

PyEngine* make_engine_alone(const nb::dict& options, nb::tuple errors) {
  return new PyEngine(World{}, options_from(options), std::move(errors));
}

PyEngine* make_engine_shm(int rank, int size, int region_fd, int wake_fd, std::vector<int> eventfds,
                          std::vector<PeerTuple> peers, const nb::dict& options, nb::tuple errors,
                          nb::tuple observer, const std::optional<MpiTuple>& mpi) {
  // From here on the descriptors are owned, whatever goes wrong.
  UniqueFd wake(wake_fd);
  std::vector<UniqueFd> bells = owned(eventfds);
  std::vector<Peer> others = peers_from(peers);
  auto region = std::make_shared<ShmRegion>();
  if (const Status status = ShmRegion::map(region_fd, ShmDomain::bytes_needed(size), *region);
      !status.ok()) {
    raise_os_error(status);
  }
  World world = make_shm_world(rank, size, std::move(region), std::move(wake), std::move(bells),
                               std::move(others));
  if (mpi.has_value()) use_mpi(world, *mpi);
  return new PyEngine(std::move(world), options_from(options), std::move(errors),
                      std::move(observer));
}

PyEngine* make_engine_tcp(int rank, int size, int wake_fd, std::vector<int> control_fds,
                          std::vector<int> data_fds, std::vector<PeerTuple> peers,
                          const nb::dict& options, nb::tuple errors, nb::tuple observer,
                          const std::optional<MpiTuple>& mpi) {
  std::vector<UniqueFd> data = owned(data_fds);
  if (mpi.has_value()) data.clear();  // nobody needs these connections
  World world = make_tcp_world(rank, size, UniqueFd(wake_fd), owned(control_fds), std::move(data),
                               peers_from(peers));
  if (mpi.has_value()) use_mpi(world, *mpi);
  return new PyEngine(std::move(world), options_from(options), std::move(errors),
                      std::move(observer));
}

}  // namespace khorovod
