// horovod._native: a table of contents.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "adapters/current_world.h"
#include "adapters/tensorflow.h"
#include "adapters/xla.h"
#include "bindings/memory.h"
#include "bindings/py_engine.h"
#include "bindings/worlds.h"
#include "collectives/kernels/kernels.h"
#include "shm/domain.h"

namespace nb = nanobind;
using namespace nb::literals;
using khorovod::Memory;
using khorovod::PyEngine;

namespace {

// An operation as a method that waits for the result ...
template <typename... Args>
auto waiting(PyEngine::PendingRef (PyEngine::*prepare)(Args...)) {
  return [prepare](PyEngine& engine, Args... args) {
    return engine.run((engine.*prepare)(std::move(args)...));
  };
}

// ... and as one that returns a handle.
template <typename... Args>
auto starting(PyEngine::PendingRef (PyEngine::*prepare)(Args...)) {
  return [prepare](PyEngine& engine, Args... args, nb::object callback) {
    return engine.start((engine.*prepare)(std::move(args)...), callback);
  };
}

// Defines both.
template <typename Class, typename Prepare, typename... Names>
void define_operation(Class& engine, const char* name, Prepare prepare, const Names&... names) {
  engine.def(name, waiting(prepare), names...);
  engine.def((std::string(name) + "_async").c_str(), starting(prepare), names...,
             "callback"_a.none() = nb::none());
}

}  // namespace

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

  m.def(
      "set_current_world",
      [](const PyEngine& one, int local_rank, int local_size) {
        khorovod::set_current_world({one.engine(), local_rank, local_size});
      },
      "engine"_a, "local_rank"_a, "local_size"_a,
      "From now on the kernels of frameworks use this engine.");
  m.def("clear_current_world", &khorovod::clear_current_world,
        "From now on the kernels of frameworks have no engine.");
  m.def("add_to_tensorflow", &khorovod::tensorflow::add_to_tensorflow,
        "Adds operations to the TensorFlow that is loaded; returns why not, or ''.");
  m.def("add_to_xla_of_tensorflow", &khorovod::xla::add_to_tensorflow,
        "Adds them to what its XLA compiles; returns why not, or ''.");

  nb::class_<Memory>(m, "Memory", nb::type_slots(khorovod::memory_slots()),
                     "Memory of a result; has the buffer protocol.")
      .def("__len__", [](const Memory& memory) { return memory.size; });

  khorovod::define_handed_work(m);
  auto engine = nb::class_<PyEngine>(m, "Engine");
  engine
      .def_static("alone", &khorovod::make_engine_alone, "options"_a, "errors"_a, "A world of one.")
      .def_static(
          "shm", &khorovod::make_engine_shm, "rank"_a, "size"_a, "region_fd"_a, "wake_fd"_a,
          "eventfds"_a, "peers"_a, "options"_a, "errors"_a, "observer"_a,
          "mpi"_a.none() = nb::none(),
          "Ranks that share memory. Takes ownership of wake_fd, eventfds and the pidfds in peers.")
      .def_static(
          "tcp", &khorovod::make_engine_tcp, "rank"_a, "size"_a, "wake_fd"_a, "control_fds"_a,
          "data_fds"_a, "peers"_a, "options"_a, "errors"_a, "observer"_a,
          "mpi"_a.none() = nb::none(),
          "Ranks that talk over sockets. Takes ownership of all descriptors; -1 for the own rank.")
      .def_prop_ro("rank", &PyEngine::rank)
      .def_prop_ro("size", &PyEngine::size)
      .def_prop_ro("plane", &PyEngine::plane);

  define_operation(engine, "allreduce", &PyEngine::allreduce, "name"_a.none(), "input"_a.none(),
                   "output"_a.none(), "op"_a, "prescale"_a, "postscale"_a, "compression"_a = 0,
                   "process_set"_a.none() = 0);
  define_operation(engine, "grouped_allreduce", &PyEngine::grouped_allreduce, "name"_a.none(),
                   "inputs"_a, "outputs"_a, "op"_a, "prescale"_a, "postscale"_a,
                   "compression"_a = 0, "process_set"_a.none() = 0);
  define_operation(engine, "allgather", &PyEngine::allgather, "name"_a.none(), "input"_a.none(),
                   "wrap"_a, "process_set"_a.none() = 0);
  define_operation(engine, "grouped_allgather", &PyEngine::grouped_allgather, "name"_a.none(),
                   "inputs"_a, "wrap"_a, "process_set"_a.none() = 0);
  define_operation(engine, "broadcast", &PyEngine::broadcast, "name"_a.none(), "input"_a.none(),
                   "output"_a.none(), "root"_a, "process_set"_a.none() = 0);
  define_operation(engine, "alltoall", &PyEngine::alltoall, "name"_a.none(), "input"_a.none(),
                   "splits"_a.none(), "wrap"_a, "process_set"_a.none() = 0);
  define_operation(engine, "reducescatter", &PyEngine::reducescatter, "name"_a.none(),
                   "input"_a.none(), "wrap"_a, "op"_a, "prescale"_a, "postscale"_a,
                   "compression"_a = 0, "process_set"_a.none() = 0);
  define_operation(engine, "grouped_reducescatter", &PyEngine::grouped_reducescatter,
                   "name"_a.none(), "inputs"_a, "wrap"_a, "op"_a, "prescale"_a, "postscale"_a,
                   "compression"_a = 0, "process_set"_a.none() = 0);
  engine
      .def("submit_handed", &PyEngine::submit_handed, "kind"_a, "name"_a.none(), "tensors"_a,
           "grouped"_a, "gpu"_a, "token"_a, "result"_a, "op"_a = 1, "prescale"_a = 1.0,
           "postscale"_a = 1.0, "compression"_a = 0, "root"_a = 0, "splits"_a.none() = nb::none(),
           "process_set"_a.none() = 0)
      .def("open_handing", &PyEngine::open_handing)
      .def("next_handed", &PyEngine::next_handed, "timeout"_a)
      .def("finish_handed", &PyEngine::finish_handed, "work"_a, "error"_a = "")
      .def("handing_closed", &PyEngine::handing_closed, "timeout"_a = 0.0);
  engine.def("barrier", waiting(&PyEngine::barrier), "process_set"_a.none() = 0)
      .def("join", waiting(&PyEngine::join))
      .def("add_process_sets", waiting(&PyEngine::add_process_sets), "sets"_a)
      .def("remove_process_set", waiting(&PyEngine::remove_process_set), "process_set"_a)
      .def("process_sets", &PyEngine::process_sets)
      .def("poll", &PyEngine::poll, "handle"_a)
      .def("synchronize", &PyEngine::synchronize, "handle"_a)
      .def("memory", &PyEngine::memory, "bytes"_a)
      .def("start_timeline", &PyEngine::start_timeline, "path"_a, "mark_cycles"_a)
      .def("stop_timeline", &PyEngine::stop_timeline)
      .def("counters", &PyEngine::counters)
      .def("events", &PyEngine::events)
      .def("shutdown", &PyEngine::shutdown, "last_words"_a = "")
      .def("abandon_in_child", &PyEngine::abandon_in_child);
}
