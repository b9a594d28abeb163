// Which ready operations travel together. A pure function: the same list gives the same buckets.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/request.h"

namespace khorovod {

struct Fusable {
  const Request* request;
  std::size_t bytes;
};

struct FusionRules {
  std::size_t threshold = std::size_t{128} << 20;  // bytes of a bucket with several operations
  bool groups_alone = false;                       // a group travels with nothing else
};

// Whether two operations can be parts of one plan, but for its size.
bool fits_together(const Request& a, const Request& b, const FusionRules& rules);

// Buckets of indices into `ready`; a bucket holds operations of one kind, process set, type and
// scaling. Buckets come in the order of their first operation.
std::vector<std::vector<std::size_t>> fuse(const std::vector<Fusable>& ready,
                                           const FusionRules& rules);

}  // namespace khorovod
