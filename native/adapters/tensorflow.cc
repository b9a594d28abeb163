#include "adapters/tensorflow.h"

#include "adapters/tensorflow_api.h"
#include "adapters/tensorflow_kernels.h"
#include "adapters/tensorflow_ops.h"

namespace khorovod::tensorflow {

namespace {

std::string add() {
  Api found;
  if (const std::string missing = find_api(found); !missing.empty()) {
    return "this TensorFlow has no " + missing;
  }
  set_api(found);
  std::string problem = define_operations();
  if (problem.empty()) problem = add_collective_kernels();
  if (problem.empty()) problem = add_query_kernels();
  return problem;
}

}  // namespace

std::string add_to_tensorflow() {
  static const std::string outcome = add();  // TensorFlow would end the process the second time
  return outcome;
}

}  // namespace khorovod::tensorflow
