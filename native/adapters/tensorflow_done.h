// What tells TensorFlow that an asynchronous kernel is done.
//
// TensorFlow hands out the address of a std::function that is gone when the kernel's function
// returns, so it has to be copied. This is the one place that relies on more than the C interface:
// on libstdc++'s std::function, which TensorFlow is built with. It is looked at before it is
// trusted; where it looks different, kernels block instead.
#pragma once

#include <memory>

#include "adapters/tensorflow_api.h"

namespace khorovod::tensorflow {

class Done {
 public:
  // Null if it cannot be copied.
  static std::unique_ptr<Done> copy_of(AsyncOpKernelDoneCallback* callback);

  virtual ~Done() = default;
  virtual void run() = 0;  // once; the kernel's context is gone afterwards
};

}  // namespace khorovod::tensorflow
