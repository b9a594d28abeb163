#include "bindings/buffer.h"

#include <algorithm>
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

const char* role_of(BufferView::Access access) {
  return access == BufferView::Access::kWrite ? "The output" : "The tensor";
}

bool dtype_of_tensor(const dlpack::DataType& type, DType& dtype) {
  if (type.lanes != 1) return false;
  constexpr auto key = [](int code, int bits) { return code * 256 + bits; };
  switch (key(type.code, type.bits)) {
    case key(dlpack::kUint, 8):
      dtype = DType::kUint8;
      return true;
    case key(dlpack::kInt, 8):
      dtype = DType::kInt8;
      return true;
    case key(dlpack::kUint, 16):
      dtype = DType::kUint16;
      return true;
    case key(dlpack::kInt, 16):
      dtype = DType::kInt16;
      return true;
    case key(dlpack::kInt, 32):
      dtype = DType::kInt32;
      return true;
    case key(dlpack::kInt, 64):
      dtype = DType::kInt64;
      return true;
    case key(dlpack::kFloat, 16):
      dtype = DType::kFloat16;
      return true;
    case key(dlpack::kBfloat, 16):
      dtype = DType::kBfloat16;
      return true;
    case key(dlpack::kFloat, 32):
      dtype = DType::kFloat32;
      return true;
    case key(dlpack::kFloat, 64):
      dtype = DType::kFloat64;
      return true;
    case key(dlpack::kBool, 8):
      dtype = DType::kBool;
      return true;
    default:
      return false;
  }
}

bool contiguous(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  bool dense = true;
  std::int64_t wanted = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != wanted) dense = false;
    wanted *= tensor.shape[i];
  }
  return dense;
}

// The functions that the class of `object` offers for looking at its tensors; null if none.
const dlpack::ExchangeApi* exchange_api_of(nb::handle object) {
  static PyObject* const attribute = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  PyObject* const capsule =
      PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())), attribute);
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  Py_DECREF(capsule);  // the class has it
  if (api == nullptr) PyErr_Clear();
  while (api != nullptr && api->version.major != dlpack::kMajor) api = api->previous;
  return api != nullptr && api->borrow != nullptr ? api : nullptr;
}

// What is wrong with it, in the exporter's words.
[[noreturn]] void refuse(BufferView::Access access, const char* reason) {
  const std::string message =
      std::string(role_of(access)) + " cannot be used: it must be a contiguous" +
      (access == BufferView::Access::kWrite ? ", writable" : "") + " array (" + reason + ")";
  throw nb::value_error(message.c_str());
}

}  // namespace

void BufferView::open(nb::handle object, Access access) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    open_buffer(object, access);
  } else {
    open_tensor(object, access);
  }
}

void BufferView::open_buffer(nb::handle object, Access access) {
  const int flags =
      PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (access == Access::kWrite ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
    view_ = {};
    const nb::python_error cause;  // takes the error that is set
    if (const nb::object bits = bits_of_bfloat16(object); bits.is_valid()) {
      open_buffer(bits, access);
      dtype_ = DType::kBfloat16;
      return;
    }
    refuse(access, cause.what());
  }
  if (!dtype_of_format(view_.format, view_.itemsize, dtype_)) {
    const std::string message =
        std::string("The element type '") + (view_.format != nullptr ? view_.format : "?") +
        "' is not supported; use int8 to int64, uint8, uint16, a float type "
        "or bool, of native byte order";
    release();
    throw nb::value_error(message.c_str());
  }
  data_ = static_cast<std::byte*>(view_.buf);
  bytes_ = static_cast<std::size_t>(view_.len);
  static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
  shape_ = reinterpret_cast<const std::int64_t*>(view_.shape);
  ndim_ = view_.ndim;
}

void BufferView::open_tensor(nb::handle object, Access access) {
  if (const dlpack::ExchangeApi* api = exchange_api_of(object); api != nullptr) {
    dlpack::Tensor tensor;
    if (api->borrow(object.ptr(), &tensor) != 0) {
      const nb::python_error cause;
      refuse(access, cause.what());
    }
    describe(tensor, access);
    kept_ = nb::borrow(object);
    return;
  }
  // A framework without the quick way gives a capsule, but not of what it differentiates.
  try {
    const nb::object plain =
        nb::hasattr(object, "detach") ? object.attr("detach")() : nb::borrow(object);
    kept_ = plain.attr("__dlpack__")();
  } catch (nb::python_error& cause) {
    refuse(access, cause.what());
  }
  const auto* managed =
      static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(kept_.ptr(), "dltensor"));
  if (managed == nullptr) {
    const nb::python_error cause;
    refuse(access, cause.what());
  }
  describe(managed->tensor, access);  // which the capsule owns: nobody consumes it
}

void BufferView::describe(const dlpack::Tensor& tensor, Access access) {
  const auto device = tensor.device.type;
  if (device != dlpack::kCpu && device != dlpack::kCudaHost && device != dlpack::kRocmHost) {
    refuse(access, "it is on another device; move it to the CPU");
  }
  if (!contiguous(tensor)) refuse(access, "it is not contiguous; use tensor.contiguous()");
  if (!dtype_of_tensor(tensor.dtype, dtype_)) {
    throw nb::value_error(
        "The element type is not supported; use int8 to int64, uint8, uint16, float16, bfloat16, "
        "float32, float64 or bool");
  }
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  shape_ = tensor.shape;
  ndim_ = tensor.ndim;
  bytes_ = dtype_size(dtype_);
  for (int i = 0; i < ndim_; ++i) bytes_ *= static_cast<std::size_t>(shape_[i]);
}

BufferView::~BufferView() { release(); }

void BufferView::release() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  view_ = {};
}

}  // namespace khorovod
