// horovod._native: a table of contents.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/py_engine.h"
#include "bindings/worlds.h"
#include "collectives/kernels/kernels.h"
#include "shm/domain.h"

namespace nb = nanobind;
using namespace nb::literals;
using khorovod::PyEngine;

NB_MODULE(_native, m) {
  m.doc() = "The native engine. Its only user is horovod._core.";

  m.def(
      "kernel_isa", [] { return khorovod::kernels().isa; },
      "The instruction set that reductions use on this CPU.");
  m.def("shm_bytes_needed", &khorovod::ShmDomain::bytes_needed, "size"_a,
        "How large the region of a shared-memory domain of `size` ranks is.");
  m.attr("NONCE_OFFSET") = khorovod::kNonceOffset;
  m.def("in_callback", &khorovod::CompletionPool::in_callback,
        "Whether this thread runs a completion callback.");
  m.def("create_region", &khorovod::create_region, "bytes"_a,
        "Makes a sealed memfd and returns its descriptor.");

  nb::class_<PyEngine>(m, "Engine")
      .def_static("alone", &khorovod::make_engine_alone, "options"_a, "errors"_a, "A world of one.")
      .def_static(
          "shm", &khorovod::make_engine_shm, "rank"_a, "size"_a, "region_fd"_a, "wake_fd"_a,
          "eventfds"_a, "peers"_a, "options"_a, "errors"_a,
          "Ranks that share memory. Takes ownership of wake_fd, eventfds and the pidfds in peers.")
      .def_static(
          "tcp", &khorovod::make_engine_tcp, "rank"_a, "size"_a, "wake_fd"_a, "control_fds"_a,
          "data_fds"_a, "peers"_a, "options"_a, "errors"_a,
          "Ranks that talk over sockets. Takes ownership of all descriptors; -1 for the own rank.")
      .def_prop_ro("rank", &PyEngine::rank)
      .def_prop_ro("size", &PyEngine::size)
      .def_prop_ro("plane", &PyEngine::plane)
      .def("allreduce", &PyEngine::allreduce, "name"_a.none(), "input"_a, "output"_a, "op"_a,
           "prescale"_a, "postscale"_a)
      .def("allreduce_async", &PyEngine::allreduce_async, "name"_a.none(), "input"_a, "output"_a,
           "op"_a, "prescale"_a, "postscale"_a, "callback"_a.none() = nb::none())
      .def("broadcast", &PyEngine::broadcast, "name"_a.none(), "input"_a, "output"_a, "root"_a)
      .def("broadcast_async", &PyEngine::broadcast_async, "name"_a.none(), "input"_a, "output"_a,
           "root"_a, "callback"_a.none() = nb::none())
      .def("barrier", &PyEngine::barrier)
      .def("poll", &PyEngine::poll, "handle"_a)
      .def("synchronize", &PyEngine::synchronize, "handle"_a)
      .def("counters", &PyEngine::counters)
      .def("events", &PyEngine::events)
      .def("shutdown", &PyEngine::shutdown)
      .def("abandon_in_child", &PyEngine::abandon_in_child);
}
