// Tensors of TensorFlow's as the parts of an operation. They need no references of ours: a kernel's
// context keeps the inputs, and the outputs once they are allocated, until TensorFlow is told that
// it is done.
#pragma once

#include <vector>

#include "adapters/tensorflow_api.h"
#include "base/status.h"
#include "engine/operation.h"

namespace khorovod::tensorflow {

khorovod::Status add_input(OpKernelContext* context, int i, Operation& operation);

// The output is like the input, and is the input if nobody else needs that.
khorovod::Status add_like_input(OpKernelContext* context, std::size_t i, Operation& operation);

// An output with so many rows, else like the input.
khorovod::Status add_rows(OpKernelContext* context, std::size_t i, std::int64_t rows,
                          Operation& operation);

// An output of numbers of 32 bits.
khorovod::Status add_numbers(OpKernelContext* context, int i, const std::int64_t* shape, int dims,
                             const std::vector<std::int32_t>& numbers);

// The second input of an alltoall.
khorovod::Status read_splits(OpKernelContext* context, std::vector<std::int64_t>& splits);

}  // namespace khorovod::tensorflow
