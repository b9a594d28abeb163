// Kernels that ask for ranks and sizes: at run time, so that a graph outlives the world it was
// built in.
#include <cstring>
#include <memory>

#include "adapters/current_world.h"
#include "adapters/tensorflow_handles.h"
#include "adapters/tensorflow_kernels.h"
#include "engine/misuse.h"

namespace khorovod::tensorflow {

namespace {

// What HorovodProcessSetIncluded gives instead of 0 or 1, as in the original.
constexpr int kNotInitialized = -1;
constexpr int kUnknownSet = -3;

struct Query {
  std::int64_t set = 0;
};

MembersRef members_of(const Engine& engine, std::int64_t set) {
  return set >= 0 && set <= UINT32_MAX ? engine.members(static_cast<std::uint32_t>(set)) : nullptr;
}

using Answer = khorovod::Status(const Query&, std::int32_t&);

khorovod::Status size_of_set(const Query& query, std::int32_t& answer) {
  CurrentWorld world;
  if (khorovod::Status status = current_world(world); !status.ok()) return status;
  const MembersRef members = members_of(*world.engine, query.set);
  if (members == nullptr) return check_members(nullptr, static_cast<std::uint32_t>(query.set), 0);
  answer = members->size();
  return {};
}

khorovod::Status rank_in_set(const Query& query, std::int32_t& answer) {
  CurrentWorld world;
  if (khorovod::Status status = current_world(world); !status.ok()) return status;
  const MembersRef members = members_of(*world.engine, query.set);
  const int rank = world.engine->rank();
  if (khorovod::Status status = check_members(members, static_cast<std::uint32_t>(query.set), rank);
      !status.ok()) {
    return status;
  }
  answer = members->index_of(rank);
  return {};
}

khorovod::Status local_size(const Query&, std::int32_t& answer) {
  CurrentWorld world;
  if (khorovod::Status status = current_world(world); !status.ok()) return status;
  answer = world.local_size;
  return {};
}

khorovod::Status local_rank(const Query&, std::int32_t& answer) {
  CurrentWorld world;
  if (khorovod::Status status = current_world(world); !status.ok()) return status;
  answer = world.local_rank;
  return {};
}

khorovod::Status included(const Query& query, std::int32_t& answer) {
  CurrentWorld world;
  if (!current_world(world).ok()) {
    answer = kNotInitialized;
    return {};
  }
  const MembersRef members = members_of(*world.engine, query.set);
  answer = members == nullptr ? kUnknownSet : (members->contains(world.engine->rank()) ? 1 : 0);
  return {};
}

template <bool kHasSet>
void* create(OpKernelConstruction* construction) {
  auto query = std::make_unique<Query>();
  if constexpr (kHasSet) {
    const StatusPtr status = new_status();
    api().OpKernelConstruction_GetAttrInt64(construction, "process_set_id", &query->set,
                                            status.get());
    if (!is_ok(status)) api().OpKernelConstruction_Failure(construction, status.get());
  }
  return query.release();
}

void destroy(void* query) { delete static_cast<Query*>(query); }

template <Answer* kAnswer>
void compute(void* query, OpKernelContext* context) {
  std::int32_t answer = 0;
  if (const khorovod::Status status = kAnswer(*static_cast<const Query*>(query), answer);
      !status.ok()) {
    return fail(context, status);
  }
  const StatusPtr status = new_status();
  const TensorPtr output(
      api().AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof answer, status.get()));
  if (!is_ok(status)) return fail(context, taken_from(status));
  std::memcpy(api().TensorData(output.get()), &answer, sizeof answer);
}

struct Kernel {
  const char* operation;
  CreateKernel* create;
  Compute* compute;
};

constexpr Kernel kKernels[] = {
    {"HorovodSize", create<true>, compute<size_of_set>},
    {"HorovodRank", create<true>, compute<rank_in_set>},
    {"HorovodLocalSize", create<false>, compute<local_size>},
    {"HorovodLocalRank", create<false>, compute<local_rank>},
    {"HorovodProcessSetIncluded", create<true>, compute<included>},
};

}  // namespace

std::string add_query_kernels() {
  const StatusPtr status = new_status();
  for (const Kernel& kernel : kKernels) {
    KernelBuilder* builder =
        api().NewKernelBuilder(kernel.operation, "CPU", kernel.create, kernel.compute, destroy);
    api().RegisterKernelBuilder(kernel.operation, builder, status.get());
    if (!is_ok(status)) return std::string(kernel.operation) + ": " + api().Message(status.get());
  }
  return "";
}

}  // namespace khorovod::tensorflow
