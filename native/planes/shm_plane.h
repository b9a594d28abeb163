// Allreduce and broadcast through the slots of a shared-memory domain.
//
// A work's stream is cut into chunks of at most one slot; chunk k of the whole job uses slot k mod
// kSlotsPerRank of every rank, and goes through three stages, each of which runs through the chunks
// in order and may be ahead of the next one (also across works, so that small plans overlap):
//   copy in   my segments -> my slot (scaled), when every peer has consumed the slot's last chunk
//   reduce    two ranks: both slots -> my output; more: my share of all slots -> my slot and output
//   gather    more than two ranks: the peers' reduced shares -> my output
// A broadcast copies in at the root and gathers everywhere else.
#pragma once

#include <deque>

#include "planes/data_plane.h"
#include "shm/domain.h"

namespace khorovod {

class ShmPlane : public DataPlane {
 public:
  explicit ShmPlane(const ShmDomain& domain) : domain_(domain) {}

  const char* name() const override { return "shm"; }
  void submit(Work work) override;
  bool advance(const SegmentDone& done) override;
  void abort() override;
  std::uint32_t wanted_news() const override { return wanted_; }

 private:
  // A stage's place: which work, which chunk of the job, how far into the work's stream.
  struct Stage {
    std::size_t work = 0;     // index into works_
    std::uint64_t chunk = 0;  // next chunk to do, counted over the life of the plane
    std::size_t at = 0;       // its first byte in the work's stream
    SegmentCursor cursor;
  };
  struct Share {
    std::size_t begin;
    std::size_t end;
  };

  bool has_work(const Stage& stage) const { return stage.work < works_.size(); }
  std::size_t chunk_bytes(const Stage& stage) const;
  Share share_of(int rank, std::size_t bytes) const;
  void move_on(Stage& stage);

  bool copy_in();
  bool reduce();
  bool gather(const SegmentDone& done);

  void reduce_range(Stage& stage, Share share, bool into_slot);
  void copy_out(Stage& stage, int rank, Share share);
  void finish_chunk(const SegmentDone& done);

  const ShmDomain& domain_;
  std::deque<Work> works_;
  Stage copy_;
  Stage reduce_;
  Stage gather_;
  std::size_t completed_segments_ = 0;     // of the work that gather_ is in
  std::size_t completed_bytes_ = 0;        // up to the end of the last of them
  std::vector<const std::byte*> sources_;  // scratch of reduce_range
  std::uint32_t wanted_ = 0;
};

}  // namespace khorovod
