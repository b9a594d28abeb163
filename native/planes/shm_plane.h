// Collectives through the slots of a shared-memory domain.
//
// A work is cut into chunks of at most one slot per rank. Each chunk goes through three stages,
// each of which runs through the chunks in order and may be ahead of the next one (also across
// works, so that small plans overlap):
//   copy in   what others need of my tensors -> my next slot, when all readers of what was in it
//             have consumed that
//   reduce    an allreduce: two members: both contributions -> my output; more: my share of all
//             slots -> my slot and output
//   gather    the rest: what I need of the members' slots -> my output, reduced if need be
// Ranks meet in lanes: one per pair and direction, which counts the chunks of the works that both
// take part in. So works of different process sets need not know of each other.
//
// Why nothing deadlocks. Of all chunks that are not finished, take the oldest (by plan): whoever
// takes part in it has finished all older ones, so its slots are free, and it waits for nothing but
// this chunk.
#pragma once

#include "planes/copy_choice.h"
#include "planes/streaming.h"
#include "shm/domain.h"

namespace khorovod {

class ShmPlane : public DataPlane {
 public:
  explicit ShmPlane(const ShmDomain& domain);

  const char* name() const override { return "shm"; }
  void submit(Work work) override;
  bool advance(const Done& done) override;
  void abort() override;
  Wanted wanted_news() const override { return wanted_; }

 private:
  struct ShmWork : CutWork {
    std::vector<std::uint64_t> before;  // by member: chunks that we share of earlier works

    int size() const { return work.members->size(); }
    int rank_of(int member) const { return work.members->ranks[static_cast<std::size_t>(member)]; }
    // A chunk's number in the lanes between a member and me.
    std::uint64_t number(std::uint64_t which, int member) const {
      return before[static_cast<std::size_t>(member)] + which;
    }
    const Stream& stream(int member) const {
      return work.streams[static_cast<std::size_t>(member)];
    }
  };
  // A rank that reads a slot of mine until its lane's `consumed` has come to `count`.
  struct Reader {
    int rank;
    std::uint64_t count;
  };

  bool wait_for(News news, int rank);

  bool copy_in();
  static bool needs_own_slot(const ShmWork& cut);
  bool slot_is_free(const ShmWork& cut, std::uint64_t chunk);
  bool has_something_for_others(const ShmWork& cut, std::uint64_t chunk) const;
  void fill_slot(const ShmWork& cut, std::uint64_t chunk, std::byte* slot);
  static std::size_t copy_chunk(const ShmWork& cut, std::uint64_t chunk, std::byte* slot,
                                bool past_cache);
  void publish(const ShmWork& cut, std::uint64_t chunk);

  bool published(const ShmWork& cut, int member, std::uint64_t chunk);
  std::byte* slot_of(const ShmWork& cut, int member, std::uint64_t chunk) const;
  bool collect_slots(const ShmWork& cut, std::uint64_t chunk, std::size_t offset);

  bool reduce();
  void reduce_pieces(const ShmWork& cut, const Stream& stream, Share share, std::byte* result);
  void reduce_and_widen(const ShmWork& cut, std::byte* out, std::size_t count);
  void tell_reduced(const ShmWork& cut, std::uint64_t chunk) const;

  bool gather(const Done& done);
  bool gather_shares(const ShmWork& cut, std::uint64_t chunk);
  bool gather_from_root(const ShmWork& cut, std::uint64_t chunk);
  bool gather_from_all(const ShmWork& cut, std::uint64_t chunk);
  bool exchange(const ShmWork& cut, std::uint64_t chunk);
  bool reduce_own_part(const ShmWork& cut, std::uint64_t chunk);
  void tell_consumed(const ShmWork& cut, std::uint64_t chunk) const;

  const ShmDomain& domain_;
  WorkStream<ShmWork> works_;
  std::vector<std::uint64_t> shared_;  // by rank: chunks of all works that we share
  Place copy_;                         // of each stage, and how many chunks it has done
  Place reduce_;
  Place gather_;
  std::uint64_t copied_ = 0;
  std::uint64_t reduced_ = 0;
  std::uint64_t gathered_ = 0;
  std::uint64_t own_needed_ = 0;  // until so many are gathered, a slot of mine may be read by me
  std::uint64_t slots_used_ = 0;  // the next one is that, round and round
  std::vector<std::vector<Reader>> slot_readers_;  // by slot, of what was put there last
  CopyChoice choice_;
  std::vector<const std::byte*> slots_;    // scratch: of a chunk, by member
  std::vector<const std::byte*> sources_;  // scratch: of a reduction, by member
  Wanted wanted_;
};

}  // namespace khorovod
