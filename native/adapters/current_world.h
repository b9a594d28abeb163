// The world that operations of a framework go to. A framework keeps its compiled graphs and its
// kernels for as long as the process lives, through any number of worlds: they ask here, at every
// call, which one there is.
//
// This is the one mutable global of the native side. Python sets it when a world begins, and takes
// it back before it ends.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/engine.h"

namespace khorovod {

struct CurrentWorld {
  std::shared_ptr<Engine> engine;
  int local_rank = 0;
  int local_size = 1;
};

void set_current_world(const CurrentWorld& world);
void clear_current_world();
// An error, of words for users, if there is none, or if this is a forked child. Takes no lock: in a
// child it might be held for ever.
Status current_world(CurrentWorld& world);

}  // namespace khorovod
