// Works for a data plane with the memory they are about, on every rank the same by the same seed,
// and what must become of them. Knows no plane in particular.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "planes/data_plane.h"
#include "tests/check.h"

namespace khorovod::testing {

using Bytes = std::vector<std::byte>;

struct JobSpec {
  Movement movement = Movement::kAllreduce;
  // Elements of each tensor; where every pair of members has a stream of its own, the most that a
  // tensor has in any of them (see count_between).
  std::vector<std::size_t> counts{};
  MembersRef members{};  // none: all ranks
  bool in_place = false;
  DType dtype = DType::kFloat32;
  DType wire = dtype;
  Reduction reduction = Reduction::kSum;
  Scale prescale{};
  Scale postscale{};
  int root = 0;
  unsigned seed = 0;
};

inline std::size_t at(int i) { return static_cast<std::size_t>(i); }

// A small generator of random numbers (splitmix64). Jobs make many of them for a few numbers each,
// and setting up a Mersenne twister takes longer than the job.
struct Dice {
  std::uint64_t state;

  std::uint32_t operator()() {
    state += 0x9e3779b97f4a7c15;
    std::uint64_t z = state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return static_cast<std::uint32_t>((z ^ z >> 31) >> 32);
  }
};

inline unsigned mixed(const JobSpec& spec, std::size_t tensor, int from, int to) {
  std::uint64_t value = spec.seed;
  for (const std::uint64_t more :
       {std::uint64_t{tensor}, std::uint64_t{at(from + 1)}, std::uint64_t{at(to + 1)}}) {
    value = value << 32 ^ Dice { value ^ more }();
  }
  return Dice{value}();
}

// How much of a tensor goes from one member to another: uneven, often nothing.
inline std::size_t count_between(const JobSpec& spec, std::size_t tensor, int from, int to) {
  const std::size_t most = spec.counts[tensor];
  if (spec.movement == Movement::kAllreduce || spec.movement == Movement::kBroadcast) return most;
  if (spec.movement == Movement::kAllgather) to = 0;
  if (spec.movement == Movement::kReducescatter) from = 0;
  if (tensor == 0 && from == 0 && to == 0) return most;  // a work is never empty
  const unsigned dice = mixed(spec, tensor, from, to);
  switch (dice % 4) {
    case 0:
      return 0;
    case 1:
      return most;
    default:
      return dice / 4 % (most + 1);
  }
}

// What a rank has of a tensor for a member.
inline Bytes input_of(const JobSpec& spec, std::size_t tensor, int from, int to) {
  const std::size_t count = count_between(spec, tensor, from, to);
  Dice random{mixed(spec, tensor + 1000, from, to)};
  Bytes bytes(count * dtype_size(spec.dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const float scaled = std::ldexp(static_cast<float>(random() % 4096) - 2048.0f,
                                    static_cast<int>(random() % 16) - 16);
    const auto number = static_cast<std::int32_t>(random());
    if (spec.dtype == DType::kFloat32) {
      std::memcpy(bytes.data() + i * sizeof scaled, &scaled, sizeof scaled);
    } else if (spec.dtype == DType::kInt32) {
      std::memcpy(bytes.data() + i * sizeof number, &number, sizeof number);
    } else {
      CHECK_EQ(dtype_size(spec.dtype), 1u);
      bytes[i] = static_cast<std::byte>(number);
    }
  }
  return bytes;
}

// One work of one rank with its memory: a tensor's part of stream m is in[m][tensor].
struct Job {
  JobSpec spec;
  Work work;
  int me = 0;
  std::vector<std::vector<Bytes>> in;
  std::vector<std::vector<Bytes>> out;  // empty where it is in place

  std::size_t expected_calls() const {
    return spec.movement == Movement::kAllreduce || spec.movement == Movement::kBroadcast
               ? spec.counts.size()
               : 1;
  }
};

// Of an allgather, all streams but the own one are only written.
inline void make_streams(Job& job, int members) {
  const JobSpec& spec = job.spec;
  const std::size_t element = dtype_size(spec.dtype);
  const auto n = at(members);
  const bool one = spec.movement == Movement::kAllreduce || spec.movement == Movement::kBroadcast;
  const bool apart = spec.movement == Movement::kAlltoall;
  job.in.resize(one ? 1 : n);
  job.out.resize(one ? 1 : n);
  job.work.streams.resize(one ? 1 : n);
  if (apart) job.work.receive.resize(n);
  for (std::size_t m = 0; m < job.in.size(); ++m) {
    const int member = static_cast<int>(m);
    const bool gathered = spec.movement == Movement::kAllgather;
    for (std::size_t t = 0; t < spec.counts.size(); ++t) {
      job.in[m].push_back(input_of(spec, t, gathered ? member : job.me, one ? 0 : member));
      if (gathered && member != job.me)
        std::fill(job.in[m][t].begin(), job.in[m][t].end(), std::byte{});
      const std::size_t coming =
          apart ? count_between(spec, t, member, job.me) : job.in[m][t].size() / element;
      job.out[m].emplace_back(coming * element);
    }
    for (std::size_t t = 0; t < spec.counts.size(); ++t) {
      Bytes& in = job.in[m][t];
      Bytes& out = spec.in_place && !apart ? in : job.out[m][t];
      job.work.streams[m].add(in.data(), out.data(), in.size() / element);
      if (apart) job.work.receive[m].add(nullptr, out.data(), out.size() / element);
    }
  }
}

inline std::size_t longest_stream(const JobSpec& spec, int members) {
  std::size_t longest = 0;
  for (int from = 0; from < members; ++from) {
    for (int to = 0; to < members; ++to) {
      std::size_t sum = 0;
      for (std::size_t t = 0; t < spec.counts.size(); ++t) sum += count_between(spec, t, from, to);
      longest = std::max(longest, sum);
    }
  }
  return longest;
}

// `number` counts this rank's jobs; the seed is the plan. The spec has its members.
inline Job make_job(const JobSpec& spec, int rank, std::uint64_t number) {
  Job job;
  job.spec = spec;
  job.me = spec.members->index_of(rank);
  Work& work = job.work;
  work.number = number;
  work.plan = spec.seed;
  work.movement = spec.movement;
  work.reduction = spec.reduction;
  work.dtype = spec.dtype;
  work.wire = spec.wire;
  work.prescale = spec.prescale;
  work.postscale = spec.postscale;
  work.members = spec.members;
  work.root = spec.root;
  make_streams(job, spec.members->size());
  work.longest = longest_stream(spec, spec.members->size());
  return job;
}

// A tensor of all members, reduced as a whole.
inline Bytes reduced(const JobSpec& spec, std::size_t tensor, int to) {
  const int n = spec.members->size();
  const std::size_t count = count_between(spec, tensor, 0, to);
  std::vector<Bytes> wires;
  std::vector<const std::byte*> sources;
  for (int m = 0; m < n; ++m) {
    const Bytes in = input_of(spec, tensor, m, to);
    wires.emplace_back(count * dtype_size(spec.wire));
    if (spec.wire == spec.dtype && spec.prescale.identity()) {
      wires.back() = in;
    } else {
      kernels().convert(spec.wire, wires.back().data(), spec.dtype, in.data(), count,
                        spec.prescale);
    }
  }
  for (const Bytes& wire : wires) sources.push_back(wire.data());
  Bytes total(count * dtype_size(spec.wire));
  if (count == 0) return total;
  kernels().reduce(spec.reduction, spec.wire, total.data(), sources.data(), n, count,
                   spec.postscale);
  if (spec.wire == spec.dtype) return total;
  Bytes result(count * dtype_size(spec.dtype));
  kernels().convert(spec.dtype, result.data(), spec.wire, total.data(), count, {});
  return result;
}

// What a member must find in its output of stream m.
inline Bytes expected_output(const JobSpec& spec, std::size_t tensor, int me, int m) {
  switch (spec.movement) {
    case Movement::kAllreduce:
      return reduced(spec, tensor, 0);
    case Movement::kBroadcast:
      return input_of(spec, tensor, spec.root, 0);
    case Movement::kAllgather:
      return input_of(spec, tensor, m, m);
    case Movement::kAlltoall:
      return input_of(spec, tensor, m, me);
    case Movement::kReducescatter:
      return reduced(spec, tensor, m);
  }
  return {};
}

// Checks the outputs of tensor `segment`, or of all, and spoils the memory: the plane may not look
// at it any more.
inline void check_output(Job& job, std::size_t segment) {
  const JobSpec& spec = job.spec;
  for (std::size_t m = 0; m < job.in.size(); ++m) {
    for (std::size_t t = 0; t < spec.counts.size(); ++t) {
      if (segment != DataPlane::kWhole && segment != t) continue;
      const bool written =
          !(spec.movement == Movement::kBroadcast && spec.root == job.me) &&
          !(spec.movement == Movement::kReducescatter && static_cast<int>(m) != job.me);
      const bool same_memory = spec.in_place && spec.movement != Movement::kAlltoall;
      Bytes& in = job.in[m][t];
      Bytes& out = same_memory ? in : job.out[m][t];
      if (written) CHECK(out == expected_output(spec, t, job.me, static_cast<int>(m)));
      std::fill(in.begin(), in.end(), std::byte{0x5a});
      std::fill(out.begin(), out.end(), std::byte{0x5a});
    }
  }
}

// Takes `Done` calls of one rank's jobs, which must come in order.
class DoneBook {
 public:
  explicit DoneBook(std::vector<Job>& jobs) : jobs_(jobs) {}

  bool complete() const { return job_ == jobs_.size(); }
  void operator()(std::uint64_t number, std::size_t segment) {
    CHECK(!complete());
    Job& job = jobs_[job_];
    CHECK_EQ(number, job.work.number);
    const bool one = job.work.streams.size() == 1;
    CHECK_EQ(segment, one ? calls_ : DataPlane::kWhole);
    check_output(job, segment);
    if (++calls_ < job.expected_calls()) return;
    calls_ = 0;
    ++job_;
  }

 private:
  std::vector<Job>& jobs_;
  std::size_t job_ = 0;
  std::size_t calls_ = 0;
};

}  // namespace khorovod::testing
