// The operations as TensorFlow's graphs know them: names, attributes, inputs, outputs, shapes.
#pragma once

#include <string>

namespace khorovod::tensorflow {

// Makes them known; returns why not, "" if all is well. Once per process.
std::string define_operations();

}  // namespace khorovod::tensorflow
