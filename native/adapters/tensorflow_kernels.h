// The kernels of the operations: what TensorFlow calls when a graph, or an eager program, gets to
// one.
#pragma once

#include <string>

namespace khorovod::tensorflow {

// Make the kernels known; return why not, "" if all is well. Once per process.
std::string add_collective_kernels();
std::string add_query_kernels();

}  // namespace khorovod::tensorflow
