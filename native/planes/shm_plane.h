// Allreduce and broadcast through the slots of a shared-memory domain.
//
// A work's stream is cut into chunks of at most one slot; chunk k of the whole job uses the k-th
// slot of every rank, round and round, and goes through three stages, each of which runs through
// the chunks in order and may be ahead of the next one (also across works, so that small plans
// overlap):
//   copy in   my segments -> my slot (scaled), when every peer has consumed the slot's last chunk
//   reduce    two ranks: both slots -> my output; more: my share of all slots -> my slot and output
//   gather    more than two ranks: the peers' reduced shares -> my output
// A broadcast copies in at the root and gathers everywhere else.
#pragma once

#include "planes/streaming.h"
#include "shm/domain.h"

namespace khorovod {

class ShmPlane : public DataPlane {
 public:
  explicit ShmPlane(const ShmDomain& domain) : domain_(domain) {}

  const char* name() const override { return "shm"; }
  void submit(Work work) override;
  bool advance(const SegmentDone& done) override;
  void abort() override;
  Wanted wanted_news() const override { return wanted_; }

 private:
  bool wait_for(News news, int rank);
  bool copy_in();
  bool reduce();
  bool gather(const SegmentDone& done);

  // Unless it must be scaled first, a rank's own contribution is read where it is.
  static bool reads_own_input(const Work& work) { return work.prescale.identity(); }
  Share own_share(std::size_t bytes) const;
  void copy_range(Place& stage, Share share);
  void reduce_range(Place& stage, Share share, bool into_slot);
  void copy_out(Place& stage, int rank, Share share);
  void finish_chunk(const SegmentDone& done);

  const ShmDomain& domain_;
  WorkStream works_{kSlotBytes};
  Place copy_;  // of each stage
  Place reduce_;
  Place gather_;
  std::vector<const std::byte*> sources_;  // scratch of reduce_range
  Wanted wanted_;
};

}  // namespace khorovod
