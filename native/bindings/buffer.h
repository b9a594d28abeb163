// A Python object's memory as the engine wants it: contiguous, in main memory, of a known type.
// Made, used and destroyed with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "bindings/dlpack.h"

namespace khorovod {

class BufferView {
 public:
  enum class Access { kRead, kWrite };

  BufferView() = default;
  // Not movable: an exporter may have put pointers to the view itself into it.
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView();

  // Once. Takes what has the buffer protocol (NumPy) or speaks DLPack (tensors of frameworks).
  // Throws ValueError or TypeError that says what is wrong with `object`.
  void open(nanobind::handle object, Access access);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  DType dtype() const { return dtype_; }
  std::vector<std::int64_t> shape() const { return {shape_, shape_ + ndim_}; }

 private:
  void open_buffer(nanobind::handle object, Access access);
  void open_tensor(nanobind::handle object, Access access);
  void describe(const dlpack::Tensor& tensor, Access access);
  void release();

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  const std::int64_t* shape_ = nullptr;  // the exporter's
  int ndim_ = 0;
  DType dtype_ = DType::kUint8;
  Py_buffer view_ = {};    // of a buffer
  nanobind::object kept_;  // of a tensor: itself, or the capsule that it gave
};

}  // namespace khorovod
