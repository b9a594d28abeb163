// Memory of a result as a Python object that frameworks can make arrays of: it has the buffer
// protocol, and is freed when the last array that shows it is gone.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

namespace khorovod {

struct Memory {
  std::shared_ptr<std::byte> bytes;  // may be null if the size is 0
  std::size_t size = 0;
};

// The slots that make it a buffer.
PyType_Slot* memory_slots();

}  // namespace khorovod
