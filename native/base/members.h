// The ranks of a process set, as every rank that knows the set sees them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace khorovod {

struct Members {
  std::uint32_t set = 0;   // the id of the process set; 0 is the whole world
  std::vector<int> ranks;  // rising

  int size() const { return static_cast<int>(ranks.size()); }
  // The place of a rank in the set, -1 if it is not in it.
  int index_of(int rank) const {
    const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return found != ranks.end() && *found == rank ? static_cast<int>(found - ranks.begin()) : -1;
  }
  bool contains(int rank) const { return index_of(rank) >= 0; }
};

using MembersRef = std::shared_ptr<const Members>;

inline MembersRef all_ranks(int size) {
  auto all = std::make_shared<Members>();
  for (int rank = 0; rank < size; ++rank) all->ranks.push_back(rank);
  return all;
}

}  // namespace khorovod
