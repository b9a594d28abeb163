// How the factors and reductions of a request become what kernels and planes know.
#pragma once

#include "collectives/kernels/kernels.h"
#include "engine/request.h"

namespace khorovod {

inline Reduction reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return Reduction::kMin;
    case ReduceOp::kMax:
      return Reduction::kMax;
    case ReduceOp::kProduct:
      return Reduction::kProduct;
    default:
      return Reduction::kSum;
  }
}

inline Scale prescale_of(const Request& request) { return {request.prescale, 1}; }

// An average is a sum whose postscale also divides by the number of members.
inline Scale postscale_of(const Request& request, int members) {
  return {request.postscale, request.reduce == ReduceOp::kAverage ? members : 1};
}

}  // namespace khorovod
