// The engine as Python sees it: keeps the objects whose memory an operation uses until it is done,
// maps outcomes to exceptions, lets Ctrl-C through. Everything here runs with the GIL held and
// releases it to wait.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings/buffer.h"
#include "engine/engine.h"

namespace khorovod {

class PyEngine {
 public:
  // `errors` holds an exception class per Code, in order.
  PyEngine(World world, EngineOptions options, nanobind::tuple errors);
  ~PyEngine();

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  const char* plane() const { return engine_->plane_name(); }

  // Blocking; `output` may be `input`.
  void allreduce(nanobind::object name, nanobind::object input, nanobind::object output, int op,
                 double prescale, double postscale);
  void broadcast(nanobind::object name, nanobind::object input, nanobind::object output, int root);
  void barrier();

  // These return a handle. `callback(error or None)` is called from a thread of the completion
  // pool.
  std::int64_t allreduce_async(nanobind::object name, nanobind::object input,
                               nanobind::object output, int op, double prescale, double postscale,
                               nanobind::object callback);
  std::int64_t broadcast_async(nanobind::object name, nanobind::object input,
                               nanobind::object output, int root, nanobind::object callback);

  bool poll(std::int64_t handle);
  // The output, or None for a handle that is not (or no longer) known.
  nanobind::object synchronize(std::int64_t handle);

  nanobind::dict counters() const;
  nanobind::list events() const;
  void shutdown();
  void abandon_in_child() { engine_->abandon_in_child(); }

 private:
  // An operation and the Python objects that its memory belongs to.
  struct Pending {
    OperationRef operation;
    nanobind::object output_object;
    BufferView input;  // not open if the output is the input
    BufferView output;
  };
  using PendingRef = std::unique_ptr<Pending>;

  PendingRef prepare(OpKind kind, const nanobind::object& input, const nanobind::object& output);
  PendingRef prepare_allreduce(const nanobind::object& name, const nanobind::object& input,
                               const nanobind::object& output, int op, double prescale,
                               double postscale);
  PendingRef prepare_broadcast(const nanobind::object& name, const nanobind::object& input,
                               const nanobind::object& output, int root);
  void name_request(Request& request, const char* prefix, const nanobind::object& name);
  std::int64_t start(PendingRef pending, const nanobind::object& callback);
  void run(PendingRef pending);
  void wait(Operation& operation);
  void check(const Status& status) const;
  void check_usable() const;
  void reap();
  void release_finished();
  void take_finished_orphans(std::vector<PendingRef>& finished);

  std::unique_ptr<Engine> engine_;
  nanobind::tuple errors_;
  bool ended_ = false;  // shutdown() was called
  std::int64_t next_handle_ = 1;
  std::int64_t next_unnamed_ = 1;  // counts alike on all ranks, whichever of them use handles
  std::unordered_map<std::int64_t, PendingRef> pending_;
  std::atomic<int> waiters_{0};  // threads in wait(), until they have the GIL back
  std::vector<PendingRef>
      orphans_;  // interrupted waits: kept until the engine is done with the memory
};

}  // namespace khorovod
