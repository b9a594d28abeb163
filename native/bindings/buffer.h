// A Python object's memory as the engine wants it: contiguous, of a known type. Made, used and
// destroyed with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace khorovod {

class BufferView {
 public:
  enum class Access { kRead, kWrite };

  BufferView() = default;
  // Not movable: an exporter may have put pointers to the view itself into it.
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView();

  // Once. Throws ValueError or TypeError that says what is wrong with `object`.
  void open(nanobind::handle object, Access access);

  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }
  DType dtype() const { return dtype_; }
  std::vector<std::int64_t> shape() const { return {view_.shape, view_.shape + view_.ndim}; }

 private:
  void release();

  Py_buffer view_ = {};
  DType dtype_ = DType::kUint8;
};

}  // namespace khorovod
