// Ranks as threads of one process: one engine each, all on one mapping of one region, so that
// ThreadSanitizer sees every access.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/shm_world.h"
#include "shm/domain.h"
#include "tests/check.h"

namespace khorovod::testing {

using WorldMaker = std::function<std::vector<World>(int size)>;

inline std::vector<Peer> peers_without(int rank, int size) {
  std::vector<Peer> peers;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    Peer peer;
    peer.rank = r;
    peer.host = "here";
    peer.pid = ::getpid();
    peers.push_back(std::move(peer));
  }
  return peers;
}

inline std::vector<World> make_shm_worlds(int size) {
  UniqueFd fd;
  CHECK(ShmRegion::create(ShmDomain::bytes_needed(size), fd).ok());
  auto region = std::make_shared<ShmRegion>();
  CHECK(ShmRegion::map(fd.get(), ShmDomain::bytes_needed(size), *region).ok());
  std::vector<UniqueFd> wakes;
  for (int r = 0; r < size; ++r) wakes.emplace_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  std::vector<World> worlds;
  for (int r = 0; r < size; ++r) {
    std::vector<UniqueFd> copies;
    for (const UniqueFd& wake : wakes) copies.emplace_back(::dup(wake.get()));
    worlds.push_back(make_shm_world(r, size, region,
                                    UniqueFd(::dup(wakes[static_cast<std::size_t>(r)].get())),
                                    std::move(copies), peers_without(r, size)));
  }
  return worlds;
}

// Runs `body(engine)` on every rank of a fresh world, each on a thread of its own.
inline void run_world(const WorldMaker& make, int size, const EngineOptions& options,
                      const std::function<void(Engine&)>& body) {
  std::vector<World> worlds = make(size);
  std::vector<std::unique_ptr<Engine>> engines;
  for (World& world : worlds)
    engines.push_back(std::make_unique<Engine>(std::move(world), options));
  std::vector<std::thread> threads;
  for (auto& engine : engines) threads.emplace_back([&] { body(*engine); });
  for (auto& thread : threads) thread.join();
}

inline Status wait(Engine& engine, const OperationRef& operation) {
  while (engine.wait(*operation) != WaitResult::kDone) {
  }
  return operation->status;
}

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::kInt64;
}

template <typename T>
OperationRef operation_on(OpKind kind, const std::string& name, const std::vector<T>& in,
                          std::vector<T>* out) {
  auto operation = std::make_shared<Operation>();
  operation->request.kind = kind;
  operation->request.name = name;
  operation->request.tensors = {{dtype_of<T>(), {static_cast<std::int64_t>(in.size())}}};
  Part part{reinterpret_cast<const std::byte*>(in.data()), nullptr};
  if (out != nullptr) part.out = reinterpret_cast<std::byte*>(out->data());
  operation->parts = {part};
  return operation;
}

template <typename T>
OperationRef allreduce_operation(const std::string& name, const std::vector<T>& in,
                                 std::vector<T>& out, ReduceOp reduce = ReduceOp::kSum) {
  out.resize(in.size());
  OperationRef operation = operation_on(OpKind::kAllreduce, name, in, &out);
  operation->request.reduce = reduce;
  return operation;
}

template <typename T>
OperationRef broadcast_operation(const std::string& name, std::vector<T>& data, int root) {
  OperationRef operation = operation_on(OpKind::kBroadcast, name, data, &data);
  operation->request.root = root;
  return operation;
}

// An operation whose result has a size that the ranks agree on.
template <typename T>
OperationRef sized_operation(OpKind kind, const std::string& name, const std::vector<T>& in,
                             std::vector<T>& out) {
  OperationRef operation = operation_on<T>(kind, name, in, nullptr);
  operation->allocate = [&out](std::size_t, std::size_t bytes) {
    out.resize(bytes / sizeof(T));
    return reinterpret_cast<std::byte*>(out.data());
  };
  return operation;
}

// Without tensors: a barrier, a join, a change of process sets.
inline OperationRef bare_operation(OpKind kind, const std::string& name,
                                   std::vector<std::int64_t> numbers = {}) {
  auto operation = std::make_shared<Operation>();
  operation->request.kind = kind;
  operation->request.name = name;
  operation->request.cacheable = false;
  operation->request.numbers = std::move(numbers);
  return operation;
}

// Small integers: sums are exact in every type, so any order of addition gives the same value.
template <typename T>
std::vector<T> input_of(int rank, std::size_t count, int salt) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>((static_cast<int>(i) * 7 + rank * 13 + salt) % 101 - 50);
  }
  return values;
}

template <typename T>
std::vector<T> sum_of(int size, std::size_t count, int salt) {
  std::vector<T> total(count, T{0});
  for (int r = 0; r < size; ++r) {
    const auto values = input_of<T>(r, count, salt);
    for (std::size_t i = 0; i < count; ++i) total[i] += values[i];
  }
  return total;
}

inline OperationRef barrier_operation() { return bare_operation(OpKind::kBarrier, "barrier"); }

}  // namespace khorovod::testing
