#include "adapters/current_world.h"

#include <atomic>

namespace khorovod {

namespace {

// One of each world there has been. They are never freed, as a kernel may just be looking at one:
// some bytes per init(). The engine itself belongs to Python, and to the calls that are inside.
struct Entry {
  std::weak_ptr<Engine> engine;
  int local_rank;
  int local_size;
  const Entry* before;
};

struct Place {
  std::atomic<const Entry*> now{nullptr};
  std::atomic<const Entry*> last{nullptr};
};

Place& place() {
  static Place only;
  return only;
}

}  // namespace

void set_current_world(const CurrentWorld& world) {
  Place& here = place();
  const auto* entry = new Entry{world.engine, world.local_rank, world.local_size,
                                here.last.load(std::memory_order_relaxed)};
  here.last.store(entry, std::memory_order_relaxed);
  here.now.store(entry, std::memory_order_release);
}

void clear_current_world() { place().now.store(nullptr, std::memory_order_release); }

Status current_world(CurrentWorld& world) {
  const Entry* entry = place().now.load(std::memory_order_acquire);
  if (entry != nullptr) {
    world = {entry->engine.lock(), entry->local_rank, entry->local_size};
    if (world.engine != nullptr) {
      if (!world.engine->in_forked_child()) [[likely]]
        return {};
      return Status::error(Code::kMismatch,
                           "This is a forked child of the process that called init(): collective "
                           "operations work only there");
    }
  }
  return Status::error(Code::kMismatch, "Horovod has not been initialized; use hvd.init().");
}

}  // namespace khorovod
