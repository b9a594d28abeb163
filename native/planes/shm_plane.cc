#include "planes/shm_plane.h"

#include "base/float_environment.h"

namespace khorovod {

namespace {

// How far copying in may be ahead of reducing. Two ranks: what was copied must still be in the
// second-level cache when it is reduced.
std::uint64_t lookahead(int size) { return size == 2 ? 2 : slots_per_rank(size); }

// Two ranks reduce everything twice rather than meet once more.
bool reduces_directly(const Work& work) { return work.members->size() == 2; }

// Copies a part of a stream to where it travels from, back to back. Returns the bytes there.
std::size_t copy_to_wire(const Work& work, const Stream& stream, Share share, std::byte* to,
                         bool past_cache) {
  const std::size_t element = dtype_size(work.dtype);
  const std::size_t wire = dtype_size(work.wire);
  for_each_piece(
      stream, share.begin, share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
        if (past_cache) {
          stream_copy(to + at * wire, segment.in + within * element, count * element);
        } else {
          to_wire(work, to + at * wire, segment.in + within * element, count);
        }
      });
  return share.count() * wire;
}

void copy_from_wire(const Work& work, const Stream& stream, Share share, const std::byte* from) {
  const std::size_t element = dtype_size(work.dtype);
  const std::size_t wire = dtype_size(work.wire);
  for_each_piece(
      stream, share.begin, share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
        from_wire(work, segment.out + within * element, from + at * wire, count);
      });
}

}  // namespace

ShmPlane::ShmPlane(const ShmDomain& domain)
    : domain_(domain),
      works_(domain.rank(), kSlotBytes),
      shared_(static_cast<std::size_t>(domain.size()), 0),
      slot_readers_(slots_per_rank(domain.size())) {}

void ShmPlane::submit(Work work) {
  ShmWork& cut = works_.push(std::move(work));
  for (const int rank : cut.work.members->ranks) {
    auto& count = shared_[static_cast<std::size_t>(rank)];
    cut.before.push_back(count);
    count += cut.chunks;
  }
}

void ShmPlane::abort() {
  works_.clear();
  wanted_ = {};
}

// The first stage that is stuck in a round has the oldest chunk: a sleeper waits for that alone.
// Nobody can then wait in a circle: of all chunks that ranks are stuck at, take the oldest; whoever
// must act for it to move on is not stuck at an older one, so it is awake, or wakes for this.
bool ShmPlane::wait_for(News news, int rank) {
  if (wanted_.news == 0) wanted_ = {news, rank};
  return false;
}

// ---------------------------------------------------------------------------------------------------
// Copying in

// Whether this rank reads its own slot when it gathers. The others may be done with it by then.
bool ShmPlane::needs_own_slot(const ShmWork& cut) {
  return cut.work.movement == Movement::kReducescatter && !travels_as_it_is(cut.work);
}

// Whether the next slot of mine, and its entry in the lanes, may be written.
bool ShmPlane::slot_is_free(const ShmWork& cut, std::uint64_t chunk) {
  // What I need myself: gathering waits for somebody, or goes on in this very call.
  if (gathered_ < own_needed_ && copied_ - gathered_ >= slot_readers_.size()) return false;
  for (int member = 0; member < cut.size(); ++member) {
    if (member == cut.me) continue;
    const Lane& lane = domain_.lane(domain_.rank(), cut.rank_of(member));
    const std::uint64_t consumed = lane.consumed.load(std::memory_order_acquire);
    if (consumed + kMostSlots <= cut.number(chunk, member)) {
      return wait_for(kNewsConsumed, cut.rank_of(member));
    }
  }
  for (const Reader& reader : slot_readers_[slots_used_ % slot_readers_.size()]) {
    const Lane& lane = domain_.lane(domain_.rank(), reader.rank);
    if (lane.consumed.load(std::memory_order_acquire) < reader.count) {
      return wait_for(kNewsConsumed, reader.rank);
    }
  }
  return true;
}

bool ShmPlane::has_something_for_others(const ShmWork& cut, std::uint64_t chunk) const {
  switch (cut.work.movement) {
    case Movement::kAllreduce:
      return true;
    case Movement::kBroadcast:
      return cut.work.root == cut.me;
    case Movement::kAllgather:
      return !cut.share(chunk, cut.stream(cut.me)).empty();
    case Movement::kAlltoall:
    case Movement::kReducescatter:
      break;
  }
  // What a rank reduces for itself goes through its slot too, if it travels in another form.
  const bool mine_too = cut.work.movement == Movement::kReducescatter;
  for (int member = 0; member < cut.size(); ++member) {
    if (member == cut.me && !mine_too) continue;
    if (!cut.share(chunk, cut.stream(member)).empty()) return true;
  }
  return false;
}

void ShmPlane::fill_slot(const ShmWork& cut, std::uint64_t chunk, std::byte* slot) {
  if (!travels_as_it_is(cut.work)) {
    copy_chunk(cut, chunk, slot, false);
    return;
  }
  const Nanoseconds began = now_ns();
  const std::size_t bytes = copy_chunk(cut, chunk, slot, choice_.past_cache());
  choice_.took(bytes, now_ns() - began);
}

// Returns the bytes copied.
std::size_t ShmPlane::copy_chunk(const ShmWork& cut, std::uint64_t chunk, std::byte* slot,
                                 bool past_cache) {
  const Work& work = cut.work;
  if (goes_apart(work.movement)) {
    std::size_t bytes = 0;
    for (int member = 0; member < cut.size(); ++member) {
      const bool mine = member == cut.me;
      if (mine && (work.movement == Movement::kAlltoall || travels_as_it_is(work))) continue;
      std::byte* place = slot + place_offset(work.movement, kSlotBytes, cut.size(), cut.me, member);
      bytes += copy_to_wire(work, cut.stream(member), cut.share(chunk, cut.stream(member)), place,
                            past_cache);
    }
    return bytes;
  }
  const Stream& stream = work.movement == Movement::kAllgather ? cut.stream(cut.me) : cut.stream(0);
  const Share all = cut.share(chunk, stream);
  Share unneeded{all.end, all.end};  // what only this rank would read
  if (work.movement == Movement::kAllreduce && !reduces_directly(work) && travels_as_it_is(work)) {
    unneeded = share_of(cut.me, cut.size(), all, dtype_size(work.wire));
  }
  const std::size_t before =
      copy_to_wire(work, stream, {all.begin, unneeded.begin}, slot, past_cache);
  std::byte* rest = slot + (unneeded.end - all.begin) * dtype_size(work.wire);
  return before + copy_to_wire(work, stream, {unneeded.end, all.end}, rest, past_cache);
}

void ShmPlane::publish(const ShmWork& cut, std::uint64_t chunk) {
  const std::uint64_t slot = slots_used_++ % slot_readers_.size();
  auto& readers = slot_readers_[slot];
  readers.clear();
  for (int member = 0; member < cut.size(); ++member) {
    if (member == cut.me) continue;
    const std::uint64_t number = cut.number(chunk, member);
    Lane& lane = domain_.lane(domain_.rank(), cut.rank_of(member));
    lane.slots[number % kMostSlots].store(static_cast<std::uint8_t>(slot),
                                          std::memory_order_relaxed);
    lane.published.store(number + 1, std::memory_order_release);
    readers.push_back({cut.rank_of(member), number + 1});
  }
  for (const Reader& reader : readers) domain_.ring(reader.rank, kNewsPublished);
}

bool ShmPlane::copy_in() {
  if (!works_.holds(copy_)) return false;
  const ShmWork& cut = works_.at(copy_);
  if (has_something_for_others(cut, copy_.chunk)) {
    if (!slot_is_free(cut, copy_.chunk)) return false;
    fill_slot(cut, copy_.chunk, domain_.slot(domain_.rank(), slots_used_));
    publish(cut, copy_.chunk);
    if (needs_own_slot(cut)) own_needed_ = copied_ + 1;
  }
  works_.move_on(copy_);
  ++copied_;
  return true;
}

// ---------------------------------------------------------------------------------------------------
// Reading what others have published

bool ShmPlane::published(const ShmWork& cut, int member, std::uint64_t chunk) {
  const int rank = cut.rank_of(member);
  const Lane& lane = domain_.lane(rank, domain_.rank());
  if (lane.published.load(std::memory_order_acquire) > cut.number(chunk, member)) return true;
  return wait_for(kNewsPublished, rank);
}

// The slot that a member's chunk is in. Of my own, any other member's lane knows.
std::byte* ShmPlane::slot_of(const ShmWork& cut, int member, std::uint64_t chunk) const {
  const int other = member != cut.me ? member : (cut.me == 0 ? 1 : 0);
  const int from = cut.rank_of(member);
  const Lane& lane = domain_.lane(from, member != cut.me ? domain_.rank() : cut.rank_of(other));
  const auto number = cut.number(chunk, other);
  return domain_.slot(from, lane.slots[number % kMostSlots].load(std::memory_order_relaxed));
}

// Finds everybody's slot of a chunk, at an offset into it; false if somebody has not published.
bool ShmPlane::collect_slots(const ShmWork& cut, std::uint64_t chunk, std::size_t offset) {
  slots_.resize(static_cast<std::size_t>(cut.size()));
  for (int member = 0; member < cut.size(); ++member) {
    if (member != cut.me && !published(cut, member, chunk)) return false;
  }
  for (int member = 0; member < cut.size(); ++member) {
    slots_[static_cast<std::size_t>(member)] = slot_of(cut, member, chunk) + offset;
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------
// Reducing

// Reduces a share of a stream from the members' `slots_`, which begin with it, into the output and,
// if given, into `result`, for others to read.
void ShmPlane::reduce_pieces(const ShmWork& cut, const Stream& stream, Share share,
                             std::byte* result) {
  const Work& work = cut.work;
  const std::size_t element = dtype_size(work.dtype);
  const std::size_t wire = dtype_size(work.wire);
  const int n = cut.size();
  sources_.resize(slots_.size());
  for_each_piece(
      stream, share.begin, share.end,
      [&](const Segment& segment, std::size_t within, std::size_t at, std::size_t count) {
        for (std::size_t m = 0; m < slots_.size(); ++m) sources_[m] = slots_[m] + at * wire;
        if (travels_as_it_is(work)) {
          sources_[static_cast<std::size_t>(cut.me)] = segment.in + within * element;
        }
        std::byte* out = segment.out + within * element;
        if (result != nullptr) {
          std::byte* dst = result + at * wire;
          kernels().reduce(work.reduction, work.wire, dst, sources_.data(), n, count,
                           work.postscale);
          from_wire(work, out, dst, count);
        } else if (work.wire == work.dtype) {
          kernels().reduce(work.reduction, work.wire, out, sources_.data(), n, count,
                           work.postscale);
        } else {
          reduce_and_widen(cut, out, count);
        }
      });
}

// From `sources_`, in blocks that stay in the first-level cache.
void ShmPlane::reduce_and_widen(const ShmWork& cut, std::byte* out, std::size_t count) {
  const Work& work = cut.work;
  alignas(64) std::byte block[8192];
  const std::size_t wire = dtype_size(work.wire);
  const std::size_t most = sizeof block / wire;
  for (std::size_t at = 0; at < count; at += most) {
    const std::size_t size = std::min(most, count - at);
    kernels().reduce(work.reduction, work.wire, block, sources_.data(), cut.size(), size,
                     work.postscale);
    from_wire(work, out + at * dtype_size(work.dtype), block, size);
    for (auto& source : sources_) source += size * wire;
  }
}

void ShmPlane::tell_reduced(const ShmWork& cut, std::uint64_t chunk) const {
  for (int member = 0; member < cut.size(); ++member) {
    if (member == cut.me) continue;
    Lane& lane = domain_.lane(domain_.rank(), cut.rank_of(member));
    lane.reduced.store(cut.number(chunk, member) + 1, std::memory_order_release);
    domain_.ring(cut.rank_of(member), kNewsReduced);
  }
}

bool ShmPlane::reduce() {
  if (!works_.holds(reduce_) || reduced_ == copied_) return false;
  const ShmWork& cut = works_.at(reduce_);
  if (cut.work.movement == Movement::kAllreduce) {
    const Share all = cut.share(reduce_.chunk, cut.stream(0));
    const bool direct = reduces_directly(cut.work);
    const std::size_t wire = dtype_size(cut.work.wire);
    const Share share = direct ? all : share_of(cut.me, cut.size(), all, wire);
    const std::size_t offset = (share.begin - all.begin) * wire;
    if (!collect_slots(cut, reduce_.chunk, offset)) return false;
    std::byte* mine = direct ? nullptr : slot_of(cut, cut.me, reduce_.chunk) + offset;
    reduce_pieces(cut, cut.stream(0), share, mine);
    if (!direct) tell_reduced(cut, reduce_.chunk);
  }
  works_.move_on(reduce_);
  ++reduced_;
  return true;
}

// ---------------------------------------------------------------------------------------------------
// Gathering

// Of an allreduce: the shares that the others have reduced.
bool ShmPlane::gather_shares(const ShmWork& cut, std::uint64_t chunk) {
  if (reduces_directly(cut.work)) return true;
  for (int member = 0; member < cut.size(); ++member) {
    if (member == cut.me) continue;
    const Lane& lane = domain_.lane(cut.rank_of(member), domain_.rank());
    if (lane.reduced.load(std::memory_order_acquire) <= cut.number(chunk, member)) {
      return wait_for(kNewsReduced, cut.rank_of(member));
    }
  }
  const Share all = cut.share(chunk, cut.stream(0));
  const std::size_t wire = dtype_size(cut.work.wire);
  for (int member = 0; member < cut.size(); ++member) {
    if (member == cut.me) continue;
    const Share share = share_of(member, cut.size(), all, wire);
    copy_from_wire(cut.work, cut.stream(0), share,
                   slot_of(cut, member, chunk) + (share.begin - all.begin) * wire);
  }
  return true;
}

bool ShmPlane::gather_from_root(const ShmWork& cut, std::uint64_t chunk) {
  const int root = cut.work.root;
  if (root == cut.me) return true;
  if (!published(cut, root, chunk)) return false;
  copy_from_wire(cut.work, cut.stream(0), cut.share(chunk, cut.stream(0)),
                 slot_of(cut, root, chunk));
  return true;
}

bool ShmPlane::gather_from_all(const ShmWork& cut, std::uint64_t chunk) {
  for (int member = 0; member < cut.size(); ++member) {
    const bool empty = cut.share(chunk, cut.stream(member)).empty();
    if (member != cut.me && !empty && !published(cut, member, chunk)) return false;
  }
  for (int i = 0; i < cut.size(); ++i) {
    const int member = (cut.me + i) % cut.size();  // not all from the same one at a time
    const Stream& stream = cut.stream(member);
    const Share share = cut.share(chunk, stream);
    if (share.empty()) continue;
    if (member == cut.me) {
      copy_own(cut.work, stream, stream, share);
    } else {
      copy_from_wire(cut.work, stream, share, slot_of(cut, member, chunk));
    }
  }
  return true;
}

bool ShmPlane::exchange(const ShmWork& cut, std::uint64_t chunk) {
  const auto& receive = cut.work.receive;
  for (int member = 0; member < cut.size(); ++member) {
    const bool empty = cut.share(chunk, receive[static_cast<std::size_t>(member)]).empty();
    if (member != cut.me && !empty && !published(cut, member, chunk)) return false;
  }
  for (int i = 0; i < cut.size(); ++i) {
    const int member = (cut.me + i) % cut.size();
    const Stream& stream = receive[static_cast<std::size_t>(member)];
    const Share share = cut.share(chunk, stream);
    if (share.empty()) continue;
    if (member == cut.me) {
      copy_own(cut.work, cut.stream(member), stream, share);
    } else {
      const std::size_t mine =
          place_offset(Movement::kAlltoall, kSlotBytes, cut.size(), member, cut.me);
      copy_from_wire(cut.work, stream, share, slot_of(cut, member, chunk) + mine);
    }
  }
  return true;
}

bool ShmPlane::reduce_own_part(const ShmWork& cut, std::uint64_t chunk) {
  const Stream& stream = cut.stream(cut.me);
  const Share share = cut.share(chunk, stream);
  if (share.empty()) return true;
  // Everybody has this rank's place at the same offset.
  const std::size_t mine = place_offset(cut.work.movement, kSlotBytes, cut.size(), cut.me, cut.me);
  if (!collect_slots(cut, chunk, mine)) return false;
  reduce_pieces(cut, stream, share, nullptr);
  return true;
}

void ShmPlane::tell_consumed(const ShmWork& cut, std::uint64_t chunk) const {
  for (int member = 0; member < cut.size(); ++member) {
    if (member == cut.me) continue;
    Lane& lane = domain_.lane(cut.rank_of(member), domain_.rank());
    lane.consumed.store(cut.number(chunk, member) + 1, std::memory_order_release);
    domain_.ring(cut.rank_of(member), kNewsConsumed);
  }
}

bool ShmPlane::gather(const Done& done) {
  if (!works_.holds(gather_) || !(gather_ < reduce_)) return false;
  const ShmWork& cut = works_.at(gather_);
  const std::uint64_t chunk = gather_.chunk;
  bool all_here = false;
  switch (cut.work.movement) {
    case Movement::kAllreduce:
      all_here = gather_shares(cut, chunk);
      break;
    case Movement::kBroadcast:
      all_here = gather_from_root(cut, chunk);
      break;
    case Movement::kAllgather:
      all_here = gather_from_all(cut, chunk);
      break;
    case Movement::kAlltoall:
      all_here = exchange(cut, chunk);
      break;
    case Movement::kReducescatter:
      all_here = reduce_own_part(cut, chunk);
      break;
  }
  if (!all_here) return false;
  tell_consumed(cut, chunk);
  works_.finish_chunk(gather_, done);
  ++gathered_;
  return true;
}

bool ShmPlane::advance(const Done& done) {
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
    const bool copied = copied_ - reduced_ < ahead && copy_in();
    if (!gathered && !reduced && !copied) return moved;
    moved = true;
  }
}

}  // namespace khorovod
