// Operations and kernels for the TensorFlow that this process has loaded.
#pragma once

#include <string>

namespace khorovod::tensorflow {

// Adds them, the first time. Returns why that is not possible, "" if it was.
std::string add_to_tensorflow();

}  // namespace khorovod::tensorflow
