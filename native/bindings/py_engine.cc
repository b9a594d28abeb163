#include "bindings/py_engine.h"

#include <chrono>
#include <thread>
#include <utility>

namespace nb = nanobind;

namespace khorovod {

namespace {

constexpr int kLongestFarewell = 1000;  // milliseconds

// A reference that threads without the GIL may copy and drop.
class Shared {
 public:
  explicit Shared(nb::object object)
      : object_(new nb::object(std::move(object)), [](nb::object* held) {
          const nb::gil_scoped_acquire acquire;
          delete held;
        }) {}
  const nb::object& operator*() const { return *object_; }

 private:
  std::shared_ptr<nb::object> object_;
};

// A message may hold what another rank sent, or be cut in the midst of a character.
nb::object text_of(const std::string& message) {
  return nb::steal(
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
}

nb::object exception_of(const nb::object& errors, const Status& status) {
  return errors[static_cast<std::size_t>(status.code)](text_of(status.message), status.rank);
}

void call_back(const nb::object& call, const nb::object& errors, const Status& status) {
  const nb::gil_scoped_acquire acquire;
  try {
    call(status.ok() ? nb::none() : exception_of(errors, status));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(call);
  }
}

Observer observer_from(const nb::tuple& given) {
  if (given.size() == 0) return {};
  return {.place =
              [place = Shared(given[0])] {
                const nb::gil_scoped_acquire acquire;
                try {
                  return std::string(nb::str((*place)()).c_str());
                } catch (nb::python_error& error) {
                  error.discard_as_unraisable(*place);
                  return std::string();
                }
              },
          .warn =
              [warn = Shared(given[1])](const std::string& text) {
                const nb::gil_scoped_acquire acquire;
                try {
                  (*warn)(text_of(text));
                } catch (nb::python_error& error) {
                  error.discard_as_unraisable(*warn);
                }
              }};
}

}  // namespace

PyEngine::PyEngine(World world, EngineOptions options, nb::tuple errors, nb::tuple observer)
    // Not by make_shared: whoever still has a weak_ptr would keep the engine's memory, too.
    : engine_(std::make_unique<Engine>(std::move(world), options, observer_from(observer))),
      errors_(std::move(errors)) {}

PyEngine::~PyEngine() {
  if (engine_->in_forked_child()) {
    // Its threads are the parent's, its locks may be held for ever: leave it alone.
    static_cast<void>(new std::shared_ptr<Engine>(std::move(engine_)));
    return;
  }
  shutdown();
}

void PyEngine::shutdown(const std::string& last_words) {
  // The second time, in the destructor at the latest, the GIL is kept: the interpreter may be
  // ending.
  if (engine_->in_forked_child() || std::exchange(ended_, true)) return;
  {
    nb::gil_scoped_release release;
    engine_->shutdown(last_words);
    // Threads that waited must have the GIL back before the interpreter can end: while it does,
    // taking the GIL ends the thread, and it would be unwound through frames that cannot throw.
    for (int i = 0; i < kLongestFarewell && waiters_.load(std::memory_order_acquire) > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  release_finished();
}

// The objects may refer to this engine: cycles that the garbage collector cannot see through.
void PyEngine::release_finished() {
  // Destroyed last: that runs foreign code, which may come back here.
  std::vector<PendingRef> finished;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (it->second->operation->is_done())
      finished.push_back(std::move(pending_.extract(it).mapped()));
    it = next;
  }
  take_finished_orphans(finished);
}

void PyEngine::take_finished_orphans(std::vector<PendingRef>& finished) {
  for (PendingRef& orphan : orphans_) {
    if (orphan->operation->is_done()) finished.push_back(std::move(orphan));
  }
  std::erase(orphans_, nullptr);
}

void PyEngine::check(const Status& status) const {
  if (status.ok()) [[likely]]
    return;
  const nb::object error = exception_of(errors_, status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void PyEngine::check_usable() const {
  if (!engine_->in_forked_child()) [[likely]]
    return;
  check(Status::error(Code::kShutdown,
                      "This is a forked child of the process that called init(): collective "
                      "operations work only there"));
}

// ---------------------------------------------------------------------------------------------------
// Waiting

void PyEngine::wait(Operation& operation) {
  while (!operation.is_done()) {
    waiters_.fetch_add(1, std::memory_order_relaxed);
    {
      nb::gil_scoped_release release;
      engine_->wait(operation);
    }
    waiters_.fetch_sub(1, std::memory_order_release);
    if (!operation.is_done() && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::object PyEngine::run(PendingRef pending) {
  check(engine_->submit(pending->operation, true));
  try {
    wait(*pending->operation);
  } catch (nb::python_error&) {
    orphans_.push_back(std::move(pending));
    throw;
  }
  check(pending->operation->status);
  return result_of(*pending);
}

std::int64_t PyEngine::start(PendingRef pending, const nb::object& callback) {
  if (!callback.is_none()) {
    pending->operation->on_done = [call = Shared(callback), errors = Shared(errors_)](
                                      const Status& status) { call_back(*call, *errors, status); };
  }
  check(engine_->submit(pending->operation, false));
  const std::int64_t handle = next_handle_++;
  pending_.emplace(handle, std::move(pending));
  return handle;
}

void PyEngine::reap() {
  if (orphans_.empty()) [[likely]]
    return;
  std::vector<PendingRef> finished;  // destroyed last, as above
  take_finished_orphans(finished);
}

bool PyEngine::poll(std::int64_t handle) {
  check_usable();
  const auto found = pending_.find(handle);
  if (found == pending_.end())
    throw nb::value_error("The handle is not known, or was synchronized already");
  if (found->second->operation->is_done()) return true;
  engine_->nudge();
  return false;
}

nb::object PyEngine::synchronize(std::int64_t handle) {
  check_usable();
  const auto found = pending_.find(handle);
  if (found == pending_.end()) return nb::none();
  const OperationRef operation = found->second->operation;
  wait(*operation);  // on an interrupt the handle stays: it can be synchronized again
  auto node = pending_.extract(handle);
  check(operation->status);
  if (node.empty()) return nb::none();  // another thread was here first
  return result_of(*node.mapped());
}

// ---------------------------------------------------------------------------------------------------
// Looking inside

nb::dict PyEngine::process_sets() const {
  nb::dict result;
  for (const MembersRef& members : engine_->process_sets()) {
    nb::list ranks;
    for (const int rank : members->ranks) ranks.append(rank);
    result[nb::int_(members->set)] = ranks;
  }
  return result;
}

Memory PyEngine::memory(std::size_t bytes) {
  Memory memory{bytes > 0 ? pool_->take(bytes) : nullptr, bytes};
  if (memory.bytes == nullptr && bytes > 0) throw std::bad_alloc();
  return memory;
}

void PyEngine::start_timeline(const std::string& path, bool mark_cycles) {
  check_usable();
  Status status;
  {
    nb::gil_scoped_release release;
    status = engine_->start_timeline(path, mark_cycles);
  }
  check(status);
}

bool PyEngine::stop_timeline() {
  check_usable();
  nb::gil_scoped_release release;
  return engine_->stop_timeline();
}

nb::dict PyEngine::counters() const {
  const Counters& c = engine_->counters();
  nb::dict result;
  const auto put = [&](const char* key, const std::atomic<std::uint64_t>& value) {
    result[key] = value.load(std::memory_order_relaxed);
  };
  put("submitted", c.submitted);
  put("completed", c.completed);
  put("failed", c.failed);
  put("plans", c.plans);
  put("inline_tensors", c.inline_tensors);
  put("cache_hits", c.cache_hits);
  put("bytes", c.bytes);
  put("negotiate_ns", c.negotiate_ns);
  put("move_ns", c.move_ns);
  put("sleeps", c.sleeps);
  put("thread_wakeups", c.thread_wakeups);
  return result;
}

nb::list PyEngine::events() const {
  nb::list result;
  for (const Event& event : engine_->recent_events()) {
    nb::dict item;
    item["kind"] = event_name(event.kind);
    item["at_ns"] = event.at;
    item["plan"] = event.plan;
    item["tensors"] = event.tensors;
    item["bytes"] = event.bytes;
    result.append(item);
  }
  return result;
}

}  // namespace khorovod
