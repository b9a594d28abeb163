// Ranks and sizes, asked when a graph runs: so it outlives the world it was built in.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace khorovod {

using Answer = Status(std::int64_t set, std::int32_t& answer);

Answer size_of_set;
Answer rank_in_set;
Answer local_size;  // they have no set
Answer local_rank;
// 1 or 0; -1 if there is no world, -3 if there is no such set, as in the original.
Answer included_in_set;

}  // namespace khorovod
