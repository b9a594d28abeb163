// Which ready tensors travel together. A pure function: the same list gives the same buckets.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/request.h"

namespace khorovod {

struct Fusable {
  const Request* request;
  std::size_t bytes;
};

// Buckets of indices into `ready`; a bucket holds tensors of one kind, type and scaling, at most
// `threshold` bytes unless it is a single tensor. Buckets come in the order of their first tensor.
std::vector<std::vector<std::size_t>> fuse(const std::vector<Fusable>& ready,
                                           std::size_t threshold);

}  // namespace khorovod
