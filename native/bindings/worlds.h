// Engines from what the bootstrap in Python collected: ranks, descriptors, settings.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/py_engine.h"

namespace khorovod {

// rank, host, pid, pidfd (-1: none)
using PeerTuple = std::tuple<int, std::string, int, int>;

// What mpi4py knows, and a tag: see MpiHandles and MpiPlane.
using MpiTuple = std::tuple<std::string, std::size_t, std::uint64_t, std::uint64_t, int>;

// Returns the descriptor of a new region; raises OSError.
int create_region(std::size_t bytes);

// `options` is a dict with the keys of EngineOptions; an unknown key is a bug and raises KeyError.
// Errors and observer are PyEngine's. With `mpi` the bytes of tensors go through that library.
PyEngine* make_engine_alone(const nanobind::dict& options, nanobind::tuple errors);
PyEngine* make_engine_shm(int rank, int size, int region_fd, int wake_fd, std::vector<int> eventfds,
                          std::vector<PeerTuple> peers, const nanobind::dict& options,
                          nanobind::tuple errors, nanobind::tuple observer,
                          const std::optional<MpiTuple>& mpi);
PyEngine* make_engine_tcp(int rank, int size, int wake_fd, std::vector<int> control_fds,
                          std::vector<int> data_fds, std::vector<PeerTuple> peers,
                          const nanobind::dict& options, nanobind::tuple errors,
                          nanobind::tuple observer, const std::optional<MpiTuple>& mpi);

}  // namespace khorovod
