// How the factors of a request become the scales that kernels apply.
#pragma once

#include "collectives/kernels/kernels.h"

namespace khorovod {

inline Scale prescale_of(double factor) { return {factor, 1}; }

// An average is a sum whose postscale also divides by the number of ranks.
inline Scale postscale_of(double factor, int divisor) { return {factor, divisor}; }

}  // namespace khorovod
