// What the ranks of a shared-memory domain find in their region: an abort record, a block of words
// per rank, a lane per pair of ranks and direction, two mailboxes per rank (to and from the
// coordinator), and the slots that chunks of tensors travel through. Offsets are computed from the
// world size alone, so every rank agrees.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shm/byte_ring.h"
#include "shm/doorbell.h"
#include "shm/region.h"

namespace khorovod {

// Measured. Two ranks with a core each move in step: few slots stay in cache. With more ranks some
// are likely to wait for a core: more slots let those that run get further ahead.
constexpr std::uint64_t slots_per_rank(int size) { return size == 2 ? 4 : 8; }
inline constexpr std::uint64_t kMostSlots = 8;
inline constexpr std::size_t kSlotBytes = std::size_t{128} << 10;

enum class Presence : std::uint32_t { kHere = 0, kLeft = 1 };

// The words of one rank; it alone writes them, but for the doorbell.
struct RankBlock {
  Doorbell doorbell;
  alignas(64) std::atomic<std::uint32_t> presence;  // a Presence
  std::atomic<std::uint64_t>
      left_after;        // the last batch of decisions it carried out before leaving
  char last_words[256];  // why it left; written before `presence`
};

// From one rank to another. The two count the chunks of all works that they share, in the same
// order; each word says how many of them ...
struct Lane {
  // Written by the rank that the lane is from:
  alignas(64) std::atomic<std::uint64_t> published;  // ... it has put into a slot of its own
  std::atomic<std::uint64_t> reduced;                // ... it has reduced its share of, there
  std::atomic<std::uint8_t> slots[kMostSlots];       // which slot, by the chunk's count
  // By the other:
  alignas(64) std::atomic<std::uint64_t> consumed;  // ... it needs no more
};

// The first rank to find the world broken writes why; `code` is stored last.
struct AbortRecord {
  std::atomic<std::uint32_t> claimed;
  std::atomic<std::uint32_t> code;  // a Code, kOk while all is well
  // The first rank that left, plus one: others that leave because of it are not to blame.
  std::atomic<std::uint32_t> first_departed;
  std::int32_t rank;  // Status::rank
  char message[2048];
};

// Sixteen bytes of the first page in which the bootstrap proves that two ranks see the same memory.
inline constexpr std::size_t kNonceOffset = 4096 - 16;
static_assert(sizeof(AbortRecord) <= kNonceOffset);

class ShmDomain {
 public:
  static std::size_t bytes_needed(int size);

  // `eventfds[r]` wakes rank r's engine thread; the domain does not own them.
  ShmDomain(std::shared_ptr<ShmRegion> region, int rank, int size, std::vector<int> eventfds);

  int rank() const { return rank_; }
  int size() const { return size_; }
  RankBlock& block(int rank) const { return blocks_[rank]; }
  RankBlock& mine() const { return blocks_[rank_]; }
  Lane& lane(int from, int to) const { return lanes_[from * size_ + to]; }
  ByteRing& to_coordinator(int rank) const { return rings_[2 * rank]; }
  ByteRing& from_coordinator(int rank) const { return rings_[2 * rank + 1]; }
  std::byte* slot(int rank, std::uint64_t number) const {
    const std::uint64_t n = slots_per_rank(size_);
    return slots_ + (static_cast<std::uint64_t>(rank) * n + number % n) * kSlotBytes;
  }

  void ring(int rank, News news) const {
    blocks_[rank].doorbell.ring(news, rank_, eventfds_[rank]);
  }
  void ring_others(News news) const;

  // Poisons the region for every rank; the first caller's reason stands.
  void abort(const Status& reason) const;
  // Tells the others that this rank has left, after the given batch of decisions, and why.
  void leave(std::uint64_t batch, const std::string& last_words) const;
  // Of a rank that has left.
  std::string last_words(int rank) const;
  // The rank that left first, or -1.
  int departed() const;
  // The reason if somebody aborted, else kOk.
  Status aborted() const;

 private:
  std::shared_ptr<ShmRegion> region_;
  int rank_;
  int size_;
  std::vector<int> eventfds_;
  AbortRecord* abort_;
  RankBlock* blocks_;
  Lane* lanes_;
  ByteRing* rings_;
  std::byte* slots_;
};

}  // namespace khorovod
