#include "bindings/buffer.h"

#include <cstring>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace khorovod {

namespace {

// The struct-module code of one native element; numpy writes it with or without a byte-order sign.
bool dtype_of_format(const char* format, Py_ssize_t itemsize, DType& dtype) {
  if (format == nullptr) format = "B";
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (std::strlen(format) != 1) return false;
  const auto integer = [&](bool is_signed) {
    switch (itemsize) {
      case 1:
        dtype = is_signed ? DType::kInt8 : DType::kUint8;
        return true;
      case 2:
        dtype = is_signed ? DType::kInt16 : DType::kUint16;
        return true;
      case 4:
        dtype = DType::kInt32;
        return is_signed;
      case 8:
        dtype = DType::kInt64;
        return is_signed;
      default:
        return false;
    }
  };
  switch (*format) {
    case '?':
      dtype = DType::kBool;
      return true;
    case 'e':
      dtype = DType::kFloat16;
      return true;
    case 'f':
      dtype = DType::kFloat32;
      return true;
    case 'd':
      dtype = DType::kFloat64;
      return true;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return integer(true);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return integer(false);
    default:
      return false;
  }
}

// NumPy has no bfloat16; the arrays of packages that do cannot be had as buffers, but a view of
// their bits can. Null if the object is not such an array.
nb::object bits_of_bfloat16(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "view")) return {};
  const nb::object dtype = object.attr("dtype");
  if (!nb::hasattr(dtype, "name") || !nb::str("bfloat16").equal(dtype.attr("name"))) return {};
  return object.attr("view")("uint16");
}

}  // namespace

void BufferView::open(nb::handle object, Access access) {
  const int flags =
      PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (access == Access::kWrite ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
    view_ = {};
    const nb::python_error cause;  // takes the error that is set
    if (const nb::object bits = bits_of_bfloat16(object); bits.is_valid()) {
      open(bits, access);
      dtype_ = DType::kBfloat16;
      return;
    }
    const std::string message =
        std::string(access == Access::kWrite ? "The output" : "The tensor") +
        " cannot be used: it must be a contiguous" +
        (access == Access::kWrite ? ", writable" : "") + " array (" + cause.what() + ")";
    throw nb::value_error(message.c_str());
  }
  if (!dtype_of_format(view_.format, view_.itemsize, dtype_)) {
    const std::string message = std::string("The element type '") +
                                (view_.format != nullptr ? view_.format : "?") +
                                "' is not supported; use an integer, float or bool type of native "
                                "byte order";
    release();
    throw nb::value_error(message.c_str());
  }
}

BufferView::~BufferView() { release(); }

void BufferView::release() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  view_ = {};
}

}  // namespace khorovod
