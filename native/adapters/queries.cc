#include "adapters/queries.h"

#include "adapters/current_world.h"
#include "engine/misuse.h"

namespace khorovod {

namespace {

constexpr int kNotInitialized = -1;
constexpr int kUnknownSet = -3;

MembersRef members_of(const Engine& engine, std::int64_t set) {
  return set >= 0 && set <= UINT32_MAX ? engine.members(static_cast<std::uint32_t>(set)) : nullptr;
}

}  // namespace

Status size_of_set(std::int64_t set, std::int32_t& answer) {
  CurrentWorld world;
  if (Status status = current_world(world); !status.ok()) return status;
  const MembersRef members = members_of(*world.engine, set);
  if (members == nullptr) return check_members(nullptr, static_cast<std::uint32_t>(set), 0);
  answer = members->size();
  return {};
}

Status rank_in_set(std::int64_t set, std::int32_t& answer) {
  CurrentWorld world;
  if (Status status = current_world(world); !status.ok()) return status;
  const MembersRef members = members_of(*world.engine, set);
  const int rank = world.engine->rank();
  if (Status status = check_members(members, static_cast<std::uint32_t>(set), rank); !status.ok()) {
    return status;
  }
  answer = members->index_of(rank);
  return {};
}

Status local_size(std::int64_t, std::int32_t& answer) {
  CurrentWorld world;
  if (Status status = current_world(world); !status.ok()) return status;
  answer = world.local_size;
  return {};
}

Status local_rank(std::int64_t, std::int32_t& answer) {
  CurrentWorld world;
  if (Status status = current_world(world); !status.ok()) return status;
  answer = world.local_rank;
  return {};
}

Status included_in_set(std::int64_t set, std::int32_t& answer) {
  CurrentWorld world;
  if (!current_world(world).ok()) {
    answer = kNotInitialized;
    return {};
  }
  const MembersRef members = members_of(*world.engine, set);
  answer = members == nullptr ? kUnknownSet : (members->contains(world.engine->rank()) ? 1 : 0);
  return {};
}

}  // namespace khorovod
