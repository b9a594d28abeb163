#include "engine/fusion.h"

#include <algorithm>

namespace khorovod {

namespace {

// Whether all tensors of both have one type.
bool one_type(const Request& a, const Request& b) {
  const DType type = a.tensors.empty() ? DType::kUint8 : a.tensors.front().dtype;
  const auto same = [&](const TensorSpec& tensor) { return tensor.dtype == type; };
  return std::all_of(a.tensors.begin(), a.tensors.end(), same) &&
         std::all_of(b.tensors.begin(), b.tensors.end(), same);
}

}  // namespace

bool fits_together(const Request& a, const Request& b, const FusionRules& rules) {
  if (a.kind != b.kind || a.set != b.set || a.handed != b.handed) return false;
  if (rules.groups_alone && (a.grouped || b.grouped)) return false;
  switch (a.kind) {
    case OpKind::kBroadcast:
      return a.root == b.root;  // bytes are bytes
    case OpKind::kAllgather:
      return true;
    case OpKind::kAllreduce:
    case OpKind::kReducescatter:
      return a.reduce != ReduceOp::kAdasum && a.reduce == b.reduce && a.prescale == b.prescale &&
             a.postscale == b.postscale && a.compression == b.compression && one_type(a, b);
    default:
      return false;
  }
}

std::vector<std::vector<std::size_t>> fuse(const std::vector<Fusable>& ready,
                                           const FusionRules& rules) {
  struct Open {
    std::size_t bucket;
    std::size_t bytes;
    const Request* like;
  };
  std::vector<std::vector<std::size_t>> buckets;
  std::vector<Open> open;  // at most one bucket of a kind is still growing
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const Fusable& one = ready[i];
    Open* mine = nullptr;
    for (Open& candidate : open) {
      if (fits_together(*candidate.like, *one.request, rules)) mine = &candidate;
    }
    if (mine != nullptr && mine->bytes + one.bytes <= rules.threshold) {
      buckets[mine->bucket].push_back(i);
      mine->bytes += one.bytes;
      continue;
    }
    buckets.push_back({i});
    const Open fresh{buckets.size() - 1, one.bytes, one.request};
    if (mine != nullptr) {
      *mine = fresh;
    } else {
      open.push_back(fresh);
    }
  }
  return buckets;
}

}  // namespace khorovod
