#include "planes/shm_plane.h"

#include "base/float_environment.h"

namespace khorovod {

namespace {

// How far copying in may be ahead of reducing. Two ranks: what was copied must still be in the
// second-level cache when it is reduced.
std::uint64_t lookahead(int size) { return size == 2 ? 2 : slots_per_rank(size); }

}  // namespace

void ShmPlane::submit(Work work) { works_.push(std::move(work)); }

void ShmPlane::abort() {
  works_.clear();
  wanted_ = {};
  copy_ = reduce_ = gather_ = Place{};
}

// The first stage that is stuck in a round has the oldest chunk: a sleeper waits for that alone.
// Nobody can then wait in a circle: of all chunks that ranks are stuck at, take the oldest; whoever
// must act for it to move on is not stuck at an older one, so it is awake, or wakes for this.
bool ShmPlane::wait_for(News news, int rank) {
  if (wanted_.news == 0) wanted_ = {news, rank};
  return false;
}

bool ShmPlane::copy_in() {
  if (!works_.holds(copy_)) return false;
  const std::uint64_t chunk = copy_.chunk;
  for (int peer = 0; peer < domain_.size(); ++peer) {
    if (peer == domain_.rank()) continue;
    const auto consumed = domain_.block(peer).consumed.load(std::memory_order_acquire);
    if (consumed + slots_per_rank(domain_.size()) <= chunk) {
      return wait_for(kNewsConsumed, peer);
    }
  }
  const Work& work = works_.work_at(copy_);
  const std::size_t bytes = works_.chunk_bytes(copy_);
  if (work.movement == Movement::kAllreduce) {
    const Share mine = reads_own_input(work) ? own_share(bytes) : Share{};
    copy_range(copy_, {0, mine.begin});
    copy_range(copy_, {mine.end, bytes});
  } else if (work.root == domain_.rank()) {
    copy_range(copy_, {0, bytes});
  }
  domain_.mine().published.store(chunk + 1, std::memory_order_release);
  domain_.ring_others(kNewsPublished);
  works_.move_on(copy_);
  return true;
}

// The part of a chunk that only this rank reads: with two ranks, none of its slot.
Share ShmPlane::own_share(std::size_t bytes) const {
  return domain_.size() == 2 ? Share{} : share_of(domain_.rank(), domain_.size(), bytes);
}

void ShmPlane::copy_range(Place& stage, Share share) {
  if (share.empty()) return;
  const Work& work = works_.work_at(stage);
  std::byte* slot = domain_.slot(domain_.rank(), stage.chunk) + share.begin;
  for_each_piece(
      work, stage.cursor, stage.at + share.begin, stage.at + share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t bytes) {
        move_scaled(work.dtype, slot + at, segment.in + within, bytes, work.prescale);
      });
}

// Reduces bytes [begin, end) of the stage's chunk from all slots into my output and, for the peers
// to gather, into my slot.
void ShmPlane::reduce_range(Place& stage, Share share, bool into_slot) {
  const Work& work = works_.work_at(stage);
  sources_.resize(static_cast<std::size_t>(domain_.size()));
  std::byte* mine = domain_.slot(domain_.rank(), stage.chunk);
  const std::size_t element = dtype_size(work.dtype);
  for_each_piece(
      work, stage.cursor, stage.at + share.begin, stage.at + share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t bytes) {
        for (int r = 0; r < domain_.size(); ++r) {
          sources_[static_cast<std::size_t>(r)] = domain_.slot(r, stage.chunk) + share.begin + at;
        }
        if (reads_own_input(work)) {
          sources_[static_cast<std::size_t>(domain_.rank())] = segment.in + within;
        }
        std::byte* out = segment.out + within;
        std::byte* dst = into_slot ? mine + share.begin + at : out;
        kernels().sum(work.dtype, dst, sources_.data(), domain_.size(), bytes / element,
                      work.postscale);
        if (into_slot) std::memcpy(out, dst, bytes);
      });
}

bool ShmPlane::reduce() {
  if (!works_.holds(reduce_) || reduce_.chunk == copy_.chunk) return false;
  const Work& work = works_.work_at(reduce_);
  if (work.movement == Movement::kAllreduce) {
    for (int peer = 0; peer < domain_.size(); ++peer) {
      if (domain_.block(peer).published.load(std::memory_order_acquire) <= reduce_.chunk) {
        return wait_for(kNewsPublished, peer);
      }
    }
    const std::size_t bytes = works_.chunk_bytes(reduce_);
    if (domain_.size() == 2) {
      reduce_range(reduce_, {0, bytes}, false);
    } else {
      const Share share = share_of(domain_.rank(), domain_.size(), bytes);
      if (share.begin < share.end) reduce_range(reduce_, share, true);
    }
  }
  if (domain_.size() > 2) {
    domain_.mine().reduced.store(reduce_.chunk + 1, std::memory_order_release);
    domain_.ring_others(kNewsReduced);
  }
  works_.move_on(reduce_);
  return true;
}

void ShmPlane::copy_out(Place& stage, int rank, Share share) {
  if (share.begin == share.end) return;
  const std::byte* slot = domain_.slot(rank, stage.chunk) + share.begin;
  for_each_piece(works_.work_at(stage), stage.cursor, stage.at + share.begin, stage.at + share.end,
                 [&](const Segment& segment, std::size_t within, std::size_t at,
                     std::size_t bytes) { std::memcpy(segment.out + within, slot + at, bytes); });
}

bool ShmPlane::gather(const SegmentDone& done) {
  if (!works_.holds(gather_) || gather_.chunk == reduce_.chunk) return false;
  const Work& work = works_.work_at(gather_);
  const std::size_t bytes = works_.chunk_bytes(gather_);
  if (work.movement == Movement::kBroadcast) {
    if (work.root != domain_.rank()) {
      if (domain_.block(work.root).published.load(std::memory_order_acquire) <= gather_.chunk) {
        return wait_for(kNewsPublished, work.root);
      }
      copy_out(gather_, work.root, {0, bytes});
    }
  } else if (domain_.size() > 2) {
    for (int peer = 0; peer < domain_.size(); ++peer) {
      if (domain_.block(peer).reduced.load(std::memory_order_acquire) <= gather_.chunk) {
        return wait_for(kNewsReduced, peer);
      }
    }
    for (int peer = 0; peer < domain_.size(); ++peer) {  // rising shares: the cursor follows
      if (peer != domain_.rank()) copy_out(gather_, peer, share_of(peer, domain_.size(), bytes));
    }
  }
  finish_chunk(done);
  return true;
}

void ShmPlane::finish_chunk(const SegmentDone& done) {
  domain_.mine().consumed.store(gather_.chunk + 1, std::memory_order_release);
  domain_.ring_others(kNewsConsumed);
  works_.finish_chunk(gather_, done);
}

bool ShmPlane::advance(const SegmentDone& done) {
  if (works_.empty()) {
    wanted_ = {};
    return false;
  }
  const FloatEnvironment ieee;
  const std::uint64_t ahead = lookahead(domain_.size());
  bool moved = false;
  for (;;) {
    wanted_ = {};
    // The oldest chunk first: it frees slots for everybody; then keep the pipeline filled.
    const bool gathered = gather(done);
    const bool reduced = reduce();
    const bool copied = copy_.chunk - reduce_.chunk < ahead && copy_in();
    if (!gathered && !reduced && !copied) return moved;
    moved = true;
  }
}

}  // namespace khorovod
