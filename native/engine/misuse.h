// What one rank can see alone to be wrong with an operation, and the words for it: the same for
// every frontend. Pure. The functions that end in `_in` also write what they have checked.
#pragma once

#include <optional>
#include <vector>

#include "base/members.h"
#include "base/status.h"
#include "engine/request.h"

namespace khorovod {

// `members` is null if there is no such set.
Status check_members(const MembersRef& members, std::uint32_t set, int rank);
// All tensors have a first dimension, of which `operation` makes use.
Status check_rows(const Request& request, const char* operation);
// The rows for each member: `given`, or the same for all.
Status put_splits_in(Request& request, const std::optional<std::vector<std::int64_t>>& given,
                     int members);
Status put_root_in(Request& request, const Members& members, int root);
Status put_reduction_in(Request& request, int op, double prescale, double postscale,
                        int compression);
// Whether the reduction can be done with tensors of these types, by so many members.
Status check_reducible(const Request& request, int members);

}  // namespace khorovod
