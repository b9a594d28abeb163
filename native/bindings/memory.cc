#include "bindings/memory.h"

namespace nb = nanobind;

namespace khorovod {

namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  static std::byte nothing;  // an empty buffer must still point somewhere
  const Memory& memory = *nb::inst_ptr<Memory>(self);
  void* address = memory.size > 0 ? memory.bytes.get() : &nothing;
  return PyBuffer_FillInfo(view, self, address, static_cast<Py_ssize_t>(memory.size), 0, flags);
}

}  // namespace

PyType_Slot* memory_slots() {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                {0, nullptr}};
  return slots;
}

}  // namespace khorovod
