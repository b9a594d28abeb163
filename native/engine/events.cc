#include "engine/events.h"

#include <algorithm>

namespace khorovod {

const char* event_name(EventKind kind) {
  constexpr const char* names[kEventKindCount] = {"announce", "decide", "plan", "complete", "fail"};
  return names[static_cast<int>(kind)];
}

std::vector<Event> EventLog::recent() const {
  const std::lock_guard lock(mutex_);
  const std::uint64_t count = std::min<std::uint64_t>(next_, kCapacity);
  std::vector<Event> events;
  events.reserve(count);
  for (std::uint64_t i = next_ - count; i < next_; ++i) events.push_back(ring_[i % kCapacity]);
  return events;
}

}  // namespace khorovod
