// The operations for programs that XLA has compiled: one handler, which XLA calls with buffers and
// attributes. Any framework on XLA can use it; only where it is registered differs.
#pragma once

#include <string>

#include "adapters/xla_ffi.h"

namespace khorovod::xla {

// What compiled programs call it.
inline constexpr const char* kTarget = "khorovod";

// The attribute `operation` says what to do, the others how. It returns when the operation is
// submitted, and XLA goes on; where XLA has no futures, when it is done.
Error* handle(CallFrame* frame);

// Registers it with the XLA of the TensorFlow that this process has loaded, the first time. Returns
// why that is not possible, "" if it was.
std::string add_to_tensorflow();

}  // namespace khorovod::xla
