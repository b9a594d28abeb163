// Classes of errors as TensorFlow and XLA number them, both: absl's status codes. Those that are
// used.
#pragma once

#include "base/status.h"

namespace khorovod {

namespace error_codes {
using ErrorCode = int;
inline constexpr ErrorCode kOk = 0, kUnknown = 2, kInvalidArgument = 3, kFailedPrecondition = 9,
                           kAborted = 10;
}  // namespace error_codes

// What an outcome is to a framework: the class of tf.errors that its users see.
inline error_codes::ErrorCode error_code(Code code) {
  switch (code) {
    case Code::kInvalid:
      return error_codes::kInvalidArgument;
    case Code::kMismatch:
      return error_codes::kFailedPrecondition;
    case Code::kAborted:
      return error_codes::kAborted;
    default:
      return error_codes::kUnknown;
  }
}

}  // namespace khorovod
