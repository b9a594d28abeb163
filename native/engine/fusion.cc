#include "engine/fusion.h"

namespace khorovod {

namespace {

bool fits_together(const Request& a, const Request& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == OpKind::kBroadcast) return a.root == b.root;  // bytes are bytes
  return a.kind == OpKind::kAllreduce && a.dtype == b.dtype && a.reduce == b.reduce &&
         a.prescale == b.prescale && a.postscale == b.postscale;
}

}  // namespace

std::vector<std::vector<std::size_t>> fuse(const std::vector<Fusable>& ready,
                                           std::size_t threshold) {
  struct Open {
    std::size_t bucket;
    std::size_t bytes;
    const Request* like;
  };
  std::vector<std::vector<std::size_t>> buckets;
  std::vector<Open> open;  // at most one bucket of a kind is still growing
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const Fusable& tensor = ready[i];
    Open* mine = nullptr;
    for (Open& candidate : open) {
      if (fits_together(*candidate.like, *tensor.request)) mine = &candidate;
    }
    if (mine != nullptr && mine->bytes + tensor.bytes <= threshold) {
      buckets[mine->bucket].push_back(i);
      mine->bytes += tensor.bytes;
      continue;
    }
    buckets.push_back({i});
    const Open fresh{buckets.size() - 1, tensor.bytes, tensor.request};
    if (mine != nullptr) {
      *mine = fresh;
    } else {
      open.push_back(fresh);
    }
  }
  return buckets;
}

}  // namespace khorovod
