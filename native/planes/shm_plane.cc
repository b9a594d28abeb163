#include "planes/shm_plane.h"

#include <algorithm>
#include <cstring>

#include "base/float_environment.h"

namespace khorovod {

namespace {

// Copies or scales one piece of a tensor.
void move_scaled(DType dtype, std::byte* dst, const std::byte* src, std::size_t bytes,
                 Scale scale) {
  if (scale.identity()) {
    std::memcpy(dst, src, bytes);
  } else {
    kernels().scale(dtype, dst, src, bytes / dtype_size(dtype), scale);
  }
}

}  // namespace

void ShmPlane::submit(Work work) { works_.push_back(std::move(work)); }

void ShmPlane::abort() {
  works_.clear();
  wanted_ = 0;
  copy_ = reduce_ = gather_ = Stage{};
}

std::size_t ShmPlane::chunk_bytes(const Stage& stage) const {
  return std::min(kSlotBytes, works_[stage.work].bytes - stage.at);
}

// Shares are whole cache lines, so that no two ranks write to the same line.
ShmPlane::Share ShmPlane::share_of(int rank, std::size_t bytes) const {
  const auto n = static_cast<std::size_t>(domain_.size());
  const std::size_t each = (bytes / n + 63) / 64 * 64;
  const std::size_t begin = std::min(bytes, each * static_cast<std::size_t>(rank));
  const bool last = rank == domain_.size() - 1;
  return {begin, last ? bytes : std::min(bytes, begin + each)};
}

void ShmPlane::move_on(Stage& stage) {
  stage.at += chunk_bytes(stage);
  ++stage.chunk;
  if (stage.at == works_[stage.work].bytes) {
    ++stage.work;
    stage.at = 0;
    stage.cursor = {};
  }
}

bool ShmPlane::copy_in() {
  if (!has_work(copy_)) return false;
  const std::uint64_t chunk = copy_.chunk;
  for (int peer = 0; peer < domain_.size(); ++peer) {
    if (peer == domain_.rank()) continue;
    const auto consumed = domain_.block(peer).consumed.load(std::memory_order_acquire);
    if (consumed + kSlotsPerRank <= chunk) {
      wanted_ |= kNewsConsumed;
      return false;
    }
  }
  const Work& work = works_[copy_.work];
  if (work.movement == Movement::kAllreduce || work.root == domain_.rank()) {
    std::byte* slot = domain_.slot(domain_.rank(), chunk);
    for_each_piece(
        work, copy_.cursor, copy_.at, copy_.at + chunk_bytes(copy_),
        [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t bytes) {
          move_scaled(work.dtype, slot + at, segment.in + within, bytes, work.prescale);
        });
  }
  domain_.mine().published.store(chunk + 1, std::memory_order_release);
  domain_.ring_others(kNewsPublished);
  move_on(copy_);
  return true;
}

// Reduces bytes [begin, end) of the stage's chunk from all slots into my output and, for the peers
// to gather, into my slot.
void ShmPlane::reduce_range(Stage& stage, Share share, bool into_slot) {
  const Work& work = works_[stage.work];
  sources_.resize(static_cast<std::size_t>(domain_.size()));
  std::byte* mine = domain_.slot(domain_.rank(), stage.chunk);
  const std::size_t element = dtype_size(work.dtype);
  for_each_piece(
      work, stage.cursor, stage.at + share.begin, stage.at + share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t bytes) {
        for (int r = 0; r < domain_.size(); ++r) {
          sources_[static_cast<std::size_t>(r)] = domain_.slot(r, stage.chunk) + share.begin + at;
        }
        std::byte* out = segment.out + within;
        std::byte* dst = into_slot ? mine + share.begin + at : out;
        kernels().sum(work.dtype, dst, sources_.data(), domain_.size(), bytes / element,
                      work.postscale);
        if (into_slot) std::memcpy(out, dst, bytes);
      });
}

bool ShmPlane::reduce() {
  if (!has_work(reduce_) || reduce_.chunk == copy_.chunk) return false;
  const Work& work = works_[reduce_.work];
  if (work.movement == Movement::kAllreduce) {
    for (int peer = 0; peer < domain_.size(); ++peer) {
      if (domain_.block(peer).published.load(std::memory_order_acquire) <= reduce_.chunk) {
        wanted_ |= kNewsPublished;
        return false;
      }
    }
    const std::size_t bytes = chunk_bytes(reduce_);
    if (domain_.size() == 2) {
      reduce_range(reduce_, {0, bytes}, false);
    } else {
      const Share share = share_of(domain_.rank(), bytes);
      if (share.begin < share.end) reduce_range(reduce_, share, true);
    }
  }
  if (domain_.size() > 2) {
    domain_.mine().reduced.store(reduce_.chunk + 1, std::memory_order_release);
    domain_.ring_others(kNewsReduced);
  }
  move_on(reduce_);
  return true;
}

void ShmPlane::copy_out(Stage& stage, int rank, Share share) {
  if (share.begin == share.end) return;
  const std::byte* slot = domain_.slot(rank, stage.chunk) + share.begin;
  for_each_piece(works_[stage.work], stage.cursor, stage.at + share.begin, stage.at + share.end,
                 [&](const Segment& segment, std::size_t within, std::size_t at,
                     std::size_t bytes) { std::memcpy(segment.out + within, slot + at, bytes); });
}

bool ShmPlane::gather(const SegmentDone& done) {
  if (!has_work(gather_) || gather_.chunk == reduce_.chunk) return false;
  const Work& work = works_[gather_.work];
  const std::size_t bytes = chunk_bytes(gather_);
  if (work.movement == Movement::kBroadcast) {
    if (work.root != domain_.rank()) {
      if (domain_.block(work.root).published.load(std::memory_order_acquire) <= gather_.chunk) {
        wanted_ |= kNewsPublished;
        return false;
      }
      copy_out(gather_, work.root, {0, bytes});
    }
  } else if (domain_.size() > 2) {
    for (int peer = 0; peer < domain_.size(); ++peer) {
      if (domain_.block(peer).reduced.load(std::memory_order_acquire) <= gather_.chunk) {
        wanted_ |= kNewsReduced;
        return false;
      }
    }
    for (int peer = 0; peer < domain_.size(); ++peer) {  // rising shares: the cursor follows
      if (peer != domain_.rank()) copy_out(gather_, peer, share_of(peer, bytes));
    }
  }
  finish_chunk(done);
  return true;
}

void ShmPlane::finish_chunk(const SegmentDone& done) {
  domain_.mine().consumed.store(gather_.chunk + 1, std::memory_order_release);
  domain_.ring_others(kNewsConsumed);
  const Work& work = works_[gather_.work];
  const std::size_t final_bytes = gather_.at + chunk_bytes(gather_);
  // Tensors complete one by one, while later ones of the same plan are still under way.
  std::size_t end = completed_bytes_;
  while (completed_segments_ < work.segments.size() &&
         end + work.segments[completed_segments_].bytes <= final_bytes) {
    end += work.segments[completed_segments_].bytes;
    done(work.plan, completed_segments_++);
  }
  completed_bytes_ = end;
  move_on(gather_);
  if (gather_.work == 1) {
    works_.pop_front();
    --copy_.work;
    --reduce_.work;
    gather_.work = 0;
    completed_segments_ = completed_bytes_ = 0;
  }
}

bool ShmPlane::advance(const SegmentDone& done) {
  if (works_.empty()) {
    wanted_ = 0;
    return false;
  }
  const FloatEnvironment ieee;
  bool moved = false;
  for (;;) {
    wanted_ = 0;
    // The oldest chunk first: it frees slots for everybody; then keep the pipeline filled.
    const bool gathered = gather(done);
    const bool reduced = reduce();
    const bool copied = copy_in();
    if (!gathered && !reduced && !copied) return moved;
    moved = true;
  }
}

}  // namespace khorovod
