// The engine as Python sees it: keeps the objects whose memory an operation uses until it is done,
// maps outcomes to exceptions, lets Ctrl-C through. Everything here runs with the GIL held and
// releases it to wait.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/memory_pool.h"
#include "bindings/buffer.h"
#include "bindings/memory.h"
#include "engine/engine.h"

namespace khorovod {

class PyEngine {
 public:
  // `errors` makes an exception of a message and, of a lost rank, its number: one per Code, in
  // order. `observer` is place() -> str and warn(str), see Observer; or empty.
  PyEngine(World world, EngineOptions options, nanobind::tuple errors,
           nanobind::tuple observer = {});
  ~PyEngine();

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  const char* plane() const { return engine_->plane_name(); }
  const std::shared_ptr<Engine>& engine() const { return engine_; }

  // An operation and the Python objects that its memory belongs to.
  struct Pending {
    OperationRef operation;
    nanobind::object outputs;  // what the caller gave for the results; else:
    nanobind::object wrap;     // wrap(memory, shape, number) makes a result (of a handed operation:
                               // wrap() does), ...
    std::vector<std::shared_ptr<std::byte>> memory;  // ... of these, by tensor
    BufferView input;                                // not open if the output is the input
    BufferView output;
    std::vector<std::unique_ptr<BufferView>> more;  // of a group
  };
  using PendingRef = std::unique_ptr<Pending>;

  // The id of a process set; None if it is not registered.
  using SetId = std::optional<std::uint32_t>;

  // What the operations of the Python class do first: check the arguments and make the operation.
  // Of each there is one that waits (`run`) and one that returns a handle (`start`).
  PendingRef allreduce(nanobind::object name, nanobind::object input, nanobind::object output,
                       int op, double prescale, double postscale, int compression, SetId set);
  PendingRef grouped_allreduce(nanobind::object name, nanobind::list inputs, nanobind::list outputs,
                               int op, double prescale, double postscale, int compression,
                               SetId set);
  PendingRef allgather(nanobind::object name, nanobind::object input, nanobind::object wrap,
                       SetId set);
  PendingRef grouped_allgather(nanobind::object name, nanobind::list inputs, nanobind::object wrap,
                               SetId set);
  PendingRef broadcast(nanobind::object name, nanobind::object input, nanobind::object output,
                       int root, SetId set);
  PendingRef alltoall(nanobind::object name, nanobind::object input, nanobind::object splits,
                      nanobind::object wrap, SetId set);
  PendingRef reducescatter(nanobind::object name, nanobind::object input, nanobind::object wrap,
                           int op, double prescale, double postscale, int compression, SetId set);
  PendingRef grouped_reducescatter(nanobind::object name, nanobind::list inputs,
                                   nanobind::object wrap, int op, double prescale, double postscale,
                                   int compression, SetId set);
  PendingRef barrier(SetId set);
  PendingRef join();
  PendingRef add_process_sets(std::vector<std::vector<int>> sets);
  PendingRef remove_process_set(std::uint32_t set);

  // An operation that the framework moves. Its executor finds it by `token`; when it is done,
  // `result()` is what synchronize() returns.
  using TensorText = std::tuple<std::string, std::vector<std::int64_t>>;  // type and shape
  std::int64_t submit_handed(const std::string& kind, nanobind::object name,
                             const std::vector<TensorText>& tensors, bool grouped, bool gpu,
                             std::int64_t token, nanobind::object result, int op, double prescale,
                             double postscale, int compression, int root, nanobind::object splits,
                             SetId set);
  // For the executor.
  void open_handing();
  std::optional<HandedWork> next_handed(double timeout);
  void finish_handed(std::uint64_t work, const std::string& error);
  bool handing_closed(double timeout);

  nanobind::object run(PendingRef pending);
  // `callback(error or None)` is called from a thread of the completion pool.
  std::int64_t start(PendingRef pending, const nanobind::object& callback);

  bool poll(std::int64_t handle);
  // The result, or None for a handle that is not (or no longer) known.
  nanobind::object synchronize(std::int64_t handle);

  nanobind::dict process_sets() const;  // ranks by id
  Memory memory(std::size_t bytes);     // for results that the caller allocates
  void start_timeline(const std::string& path, bool mark_cycles);
  bool stop_timeline();
  nanobind::dict counters() const;
  nanobind::list events() const;
  void shutdown(const std::string& last_words = "");
  // A thread of the parent may have been inside of this object: the child has its references for
  // ever, and is not to complain of that.
  void abandon_in_child() {
    engine_->abandon_in_child();
    nanobind::set_leak_warnings(false);
  }

 private:
  PendingRef prepare(OpKind kind, SetId id);
  void add_tensor(Pending& pending, const nanobind::object& input, const nanobind::object& output);
  void add_group(Pending& pending, const nanobind::list& inputs, const nanobind::list& outputs);
  void add_input(Pending& pending, const nanobind::object& input);
  void add_inputs(Pending& pending, const nanobind::list& inputs);
  void allocate_results(Pending& pending, nanobind::object wrap);
  void set_reduction(Request& request, int op, double prescale, double postscale,
                     int compression) const;
  void check_reducible(const Pending& pending) const;
  void need_rows(const Request& request, const char* operation) const;
  void set_splits(Pending& pending, const nanobind::object& splits) const;
  void set_root(Pending& pending, int root) const;
  void set_name(Request& request, const char* prefix, const nanobind::object& name);
  nanobind::object result_of(Pending& pending);
  nanobind::object tensor_of(Pending& pending, std::size_t part, std::int64_t rows) const;

  void wait(Operation& operation);
  void check(const Status& status) const;
  void check_usable() const;
  void reap();
  void release_finished();
  void take_finished_orphans(std::vector<PendingRef>& finished);

  std::shared_ptr<Engine> engine_;  // native adapters may have a reference
  nanobind::tuple errors_;
  std::shared_ptr<MemoryPool> pool_ = std::make_shared<MemoryPool>();
  bool ended_ = false;  // shutdown() was called
  std::int64_t next_handle_ = 1;
  std::unordered_map<std::int64_t, PendingRef> pending_;
  std::atomic<int> waiters_{0};  // threads in wait(), until they have the GIL back
  std::vector<PendingRef>
      orphans_;  // interrupted waits: kept until the engine is done with the memory
};

void define_handed_work(nanobind::module_& m);

}  // namespace khorovod
