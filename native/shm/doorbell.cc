#include "shm/doorbell.h"

#include <unistd.h>

#include "shm/futex.h"

namespace khorovod {

void signal_eventfd(int eventfd) {
  const std::uint64_t one = 1;
  // EAGAIN means that it is readable already; any other failure means that its owner is gone.
  [[maybe_unused]] const ssize_t written = ::write(eventfd, &one, sizeof one);
}

void Doorbell::ring(News news, int from, int eventfd) {
  sequence.fetch_add(1, std::memory_order_seq_cst);
  std::uint32_t state = sleeper.load(std::memory_order_seq_cst);
  if (((state >> 8) & 0xff & news) == 0) return;
  const std::uint32_t awaited = state >> 16;
  const bool from_another = awaited != 0 && awaited != static_cast<std::uint32_t>(from + 1);
  if ((news & kPlaneNews) != 0 && from_another) return;
  // Of several ringers one wakes the sleeper, the others have nothing to do.
  if (!sleeper.compare_exchange_strong(state, kAwake, std::memory_order_seq_cst)) return;
  if ((state & 0xff) == kOnFutex) {
    futex_wake(sequence, 1);
  } else {
    signal_eventfd(eventfd);
  }
}

}  // namespace khorovod
