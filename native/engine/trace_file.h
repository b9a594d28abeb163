// A JSON array in a file that is complete at (nearly) every moment, even if the process is killed
// while it writes. The array's end stands a good way behind the last element, and between them are
// spaces, which elements replace. The kernel copies a page at a time and does not stop within one;
// so no element crosses the border of a page unless it is longer than that.
//
// For one thread at a time. Functions return 0 or an errno.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace khorovod {

class TraceFile {
 public:
  explicit TraceFile(UniqueFd file) : file_(std::move(file)) {}

  // Elements with a comma before each; the first ones with the array's beginning instead.
  int append(std::string_view elements);
  int flush();
  // Takes the spaces away and closes; what could not be written is lost.
  void finish();

 private:
  int grow(std::int64_t size);

  UniqueFd file_;
  std::string buffer_;
  std::int64_t size_ = 0;  // of what is written without the end
  std::int64_t end_ = -1;  // where the "]" is, -1: nowhere yet
};

}  // namespace khorovod
