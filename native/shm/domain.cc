#include "shm/domain.h"

#include <algorithm>
#include <cstring>

namespace khorovod {

namespace {

constexpr std::size_t page_aligned(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

struct Offsets {
  std::size_t blocks;
  std::size_t lanes;
  std::size_t rings;
  std::size_t slots;
  std::size_t end;
};

Offsets offsets(int size) {
  const auto n = static_cast<std::size_t>(size);
  Offsets at;
  at.blocks = page_aligned(sizeof(AbortRecord));
  at.lanes = page_aligned(at.blocks + n * sizeof(RankBlock));
  at.rings = page_aligned(at.lanes + n * n * sizeof(Lane));
  at.slots = page_aligned(at.rings + 2 * n * sizeof(ByteRing));
  at.end = at.slots + n * slots_per_rank(size) * kSlotBytes;
  return at;
}

// As much of a text as there is room for.
template <std::size_t kRoom>
void write_text(char (&to)[kRoom], const std::string& text) {
  const std::size_t size = std::min(text.size(), kRoom - 1);
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

template <std::size_t kRoom>
std::string read_text(const char (&from)[kRoom]) {
  return {from, ::strnlen(from, kRoom)};
}

}  // namespace

std::size_t ShmDomain::bytes_needed(int size) { return offsets(size).end; }

ShmDomain::ShmDomain(std::shared_ptr<ShmRegion> region, int rank, int size,
                     std::vector<int> eventfds)
    : region_(std::move(region)), rank_(rank), size_(size), eventfds_(std::move(eventfds)) {
  std::byte* base = region_->data();
  const Offsets at = offsets(size);
  // The region is zeroed, and zero is the initial state of everything in it.
  abort_ = reinterpret_cast<AbortRecord*>(base);
  blocks_ = reinterpret_cast<RankBlock*>(base + at.blocks);
  lanes_ = reinterpret_cast<Lane*>(base + at.lanes);
  rings_ = reinterpret_cast<ByteRing*>(base + at.rings);
  slots_ = base + at.slots;
}

void ShmDomain::ring_others(News news) const {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) ring(peer, news);
  }
}

void ShmDomain::abort(const Status& reason) const {
  if (abort_->claimed.exchange(1, std::memory_order_acq_rel) == 0) {
    write_text(abort_->message, reason.message);
    abort_->rank = reason.rank;
    abort_->code.store(static_cast<std::uint32_t>(reason.code), std::memory_order_release);
  }
  ring_others(kNewsUrgent);
}

void ShmDomain::leave(std::uint64_t batch, const std::string& last_words) const {
  write_text(mine().last_words, last_words);
  mine().left_after.store(batch, std::memory_order_relaxed);  // the next stores release it
  std::uint32_t nobody = 0;
  abort_->first_departed.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank_) + 1,
                                                 std::memory_order_acq_rel);
  mine().presence.store(static_cast<std::uint32_t>(Presence::kLeft), std::memory_order_release);
  ring_others(kNewsUrgent);
}

int ShmDomain::departed() const {
  const std::uint32_t first = abort_->first_departed.load(std::memory_order_acquire);
  return first <= static_cast<std::uint32_t>(size_) ? static_cast<int>(first) - 1 : -1;
}

Status ShmDomain::aborted() const {
  const std::uint32_t code = abort_->code.load(std::memory_order_acquire);
  if (code == 0) [[likely]]
    return {};
  const auto known = code <= static_cast<std::uint32_t>(Code::kInternal);
  const int rank = abort_->rank;
  return {known ? static_cast<Code>(code) : Code::kInternal, read_text(abort_->message),
          rank >= 0 && rank < size_ ? rank : -1};
}

std::string ShmDomain::last_words(int rank) const { return read_text(blocks_[rank].last_words); }

}  // namespace khorovod
