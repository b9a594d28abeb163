// Plans become works of the data plane: which memory goes where.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/float_environment.h"
#include "collectives/adasum.h"
#include "engine/engine.h"
#include "engine/fusion.h"
#include "engine/reduction.h"

namespace khorovod {

namespace {

// A work under construction, and the operations that its segments belong to.
struct Draft {
  Work work;
  std::vector<OperationRef> operations;
};

std::size_t bytes_of_rows(const TensorSpec& tensor, std::int64_t rows) {
  return static_cast<std::size_t>(rows) * tensor.row_elements() * dtype_size(tensor.dtype);
}

std::size_t longest_of(const std::vector<Stream>& streams) {
  std::size_t longest = 0;
  for (const Stream& stream : streams) longest = std::max(longest, stream.count);
  return longest;
}

// Replaces an operation's inputs by scaled copies.
void scale_inputs(Operation& operation) {
  const FloatEnvironment ieee;
  operation.scratch.resize(operation.bytes);
  std::byte* at = operation.scratch.data();
  for (std::size_t i = 0; i < operation.parts.size(); ++i) {
    const TensorSpec& tensor = operation.request.tensors[i];
    kernels().convert(tensor.dtype, at, tensor.dtype, operation.parts[i].in, tensor.elements(),
                      prescale_of(operation.request));
    operation.parts[i].in = at;
    at += tensor.bytes();
  }
}

}  // namespace

// What all works of a plan have in common with a request. Moved tensors are bytes.
Work Engine::work_like(const Plan& plan, const Request& request) const {
  Work work;
  work.plan = plan.number;
  work.dtype = work.wire = DType::kUint8;
  switch (request.kind) {
    case OpKind::kAllreduce:
      work.movement = Movement::kAllreduce;
      break;
    case OpKind::kBroadcast:
      work.movement = Movement::kBroadcast;
      break;
    case OpKind::kAllgather:
      work.movement = Movement::kAllgather;
      break;
    case OpKind::kAlltoall:
      work.movement = Movement::kAlltoall;
      break;
    default:
      work.movement = Movement::kReducescatter;
      break;
  }
  return work;
}

// Memory for an output; null, and the world ends, if there is none.
std::byte* Engine::output(Operation& operation, std::size_t part, std::size_t bytes) {
  std::byte*& out = operation.parts[part].out;
  if (out == nullptr && bytes > 0 && operation.allocate) out = operation.allocate(part, bytes);
  if (out == nullptr && bytes > 0) {
    world_.link->abort(Status::error(
        Code::kInternal, "rank " + std::to_string(world_.rank) + " has no memory for the " +
                             std::to_string(bytes) + " bytes of the result of '" +
                             operation.request.label() + "'"));
  }
  return out;
}

bool Engine::run_on_plane(const Plan& plan, std::vector<OperationRef>& operations) {
  if (operations.empty()) return false;
  const Request& like = operations.front()->request;
  for (std::size_t i = 1; i < operations.size(); ++i) {
    if (!fits_together(like, operations[i]->request, {})) return false;
  }
  if (like.is_handed()) return hand(plan, operations);
  for (const OperationRef& operation : operations) operation->moved_by = world_.plane->name();
  switch (like.kind) {
    case OpKind::kAllreduce:
      if (like.reduce == ReduceOp::kAdasum) return run_adasum(plan, operations.front());
      return run_streams(plan, operations);
    case OpKind::kBroadcast:
      return run_streams(plan, operations);
    case OpKind::kAllgather:
      return run_allgather(plan, operations);
    case OpKind::kAlltoall:
      return run_alltoall(plan, operations.front());
    case OpKind::kReducescatter:
      return run_reducescatter(plan, operations);
    default:
      return false;
  }
}

// Allreduce and broadcast: one stream, as long on every rank; an allreduce has one per type.
bool Engine::run_streams(const Plan& plan, std::vector<OperationRef>& operations) {
  const Request& like = operations.front()->request;
  const MembersRef members = operations.front()->members;
  const bool reduces = like.kind == OpKind::kAllreduce;
  const bool from_here = !reduces && like.root == world_.rank;
  const Scale prescale = prescale_of(like);
  // What stands in is not to be scaled, so the rest of the work is scaled before it starts.
  const bool scale_now = reduces && !prescale.identity() &&
                         std::any_of(operations.begin(), operations.end(),
                                     [](const auto& op) { return op->stands_in; });
  std::map<DType, Draft> drafts;  // in an order that is the same on all ranks
  for (const OperationRef& operation : operations) {
    const Request& request = operation->request;
    if (scale_now && !operation->stands_in) scale_inputs(*operation);
    operation->parts_left = 1;  // until all are counted
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorSpec& tensor = request.tensors[i];
      const Part& part = operation->parts[i];
      const std::size_t bytes = tensor.bytes();
      if (bytes == 0) continue;
      if (from_here && part.out != part.in) std::memcpy(part.out, part.in, bytes);
      Draft& draft = drafts[reduces ? tensor.dtype : DType::kUint8];
      if (draft.work.streams.empty()) {
        draft.work = work_like(plan, like);
        draft.work.streams.resize(1);
        if (reduces) {
          draft.work.dtype = tensor.dtype;
          draft.work.wire = wire_type(tensor.dtype, like.compression);
          draft.work.reduction = reduction_of(like.reduce);
          if (!scale_now) draft.work.prescale = prescale;
          draft.work.postscale = postscale_of(like, members->size());
        } else {
          draft.work.root = members->index_of(like.root);
        }
      }
      draft.work.streams.front().add(part.in, part.out, reduces ? tensor.elements() : bytes);
      draft.operations.push_back(operation);
      ++operation->parts_left;
    }
    part_done(operation);
  }
  for (auto& [dtype, draft] : drafts) {
    draft.work.longest = draft.work.streams.front().count;
    start(std::move(draft.work), std::move(draft.operations));
  }
  return true;
}

bool Engine::run_allgather(const Plan& plan, std::vector<OperationRef>& operations) {
  const MembersRef members = operations.front()->members;
  const auto n = members->ranks.size();
  const auto me = static_cast<std::size_t>(members->index_of(world_.rank));
  Work work = work_like(plan, operations.front()->request);
  work.streams.resize(n);
  for (std::size_t o = 0; o < operations.size(); ++o) {
    Operation& operation = *operations[o];
    const auto& numbers = plan.entries[o].numbers;
    if (numbers.size() != n * operation.request.tensors.size()) return false;
    for (std::size_t i = 0; i < operation.request.tensors.size(); ++i) {
      const TensorSpec& tensor = operation.request.tensors[i];
      const std::int64_t* rows = numbers.data() + i * n;
      std::int64_t total = 0;
      for (std::size_t m = 0; m < n; ++m) total += rows[m];
      operation.numbers.push_back(total);
      if (rows[me] != tensor.rows() || !tensor.can_have(total)) return false;
      std::byte* out = output(operation, i, bytes_of_rows(tensor, total));
      if (out == nullptr) {
        if (bytes_of_rows(tensor, total) > 0) return true;  // the world has been told
        continue;
      }
      for (std::size_t m = 0; m < n; ++m) {
        const std::size_t bytes = bytes_of_rows(tensor, rows[m]);
        work.streams[m].add(m == me ? operation.parts[i].in : nullptr, out, bytes);
        out += bytes;
      }
    }
    operation.parts_left = 1;
  }
  work.longest = longest_of(work.streams);
  start(std::move(work), std::move(operations));
  return true;
}

bool Engine::run_alltoall(const Plan& plan, const OperationRef& operation) {
  const auto n = operation->members->ranks.size();
  const auto me = static_cast<std::size_t>(operation->members->index_of(world_.rank));
  const auto& rows = plan.entries.front().numbers;  // from each member to each
  if (rows.size() != n * n) return false;
  const TensorSpec& tensor = operation->request.tensors.front();
  Work work = work_like(plan, operation->request);
  work.streams.resize(n);
  work.receive.resize(n);
  std::int64_t received = 0;
  for (std::size_t m = 0; m < n; ++m) {
    if (rows[me * n + m] != operation->request.numbers[m]) return false;
    operation->numbers.push_back(rows[m * n + me]);
    received += rows[m * n + me];
  }
  const bool possible = std::all_of(rows.begin(), rows.end(),
                                    [&](std::int64_t count) { return tensor.can_have(count); });
  if (!possible || !tensor.can_have(received)) return false;
  const std::byte* in = operation->parts.front().in;
  std::byte* out = output(*operation, 0, bytes_of_rows(tensor, received));
  if (out == nullptr && bytes_of_rows(tensor, received) > 0)
    return true;  // the world has been told
  for (std::size_t m = 0; m < n; ++m) {
    const std::size_t sent = bytes_of_rows(tensor, rows[me * n + m]);
    const std::size_t taken = bytes_of_rows(tensor, rows[m * n + me]);
    work.streams[m].add(in, nullptr, sent);
    work.receive[m].add(nullptr, out, taken);
    in += sent;
    out += taken;
  }
  for (const auto count : rows) work.longest = std::max(work.longest, bytes_of_rows(tensor, count));
  operation->parts_left = 1;
  start(std::move(work), {operation});
  return true;
}

bool Engine::run_reducescatter(const Plan& plan, std::vector<OperationRef>& operations) {
  const Request& like = operations.front()->request;
  const MembersRef members = operations.front()->members;
  const int n = members->size();
  const int me = members->index_of(world_.rank);
  std::map<DType, Draft> drafts;
  for (const OperationRef& operation : operations) {
    const Request& request = operation->request;
    operation->parts_left = 1;  // until all are counted
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorSpec& tensor = request.tensors[i];
      const Rows mine = rows_of_member(tensor.rows(), me, n);
      operation->numbers.push_back(mine.count);
      std::byte* out = output(*operation, i, bytes_of_rows(tensor, mine.count));
      if (out == nullptr && bytes_of_rows(tensor, mine.count) > 0) return true;
      if (tensor.bytes() == 0) continue;
      Draft& draft = drafts[tensor.dtype];
      if (draft.work.streams.empty()) {
        draft.work = work_like(plan, like);
        draft.work.streams.resize(static_cast<std::size_t>(n));
        draft.work.dtype = tensor.dtype;
        draft.work.wire = wire_type(tensor.dtype, like.compression);
        draft.work.reduction = reduction_of(like.reduce);
        draft.work.prescale = prescale_of(like);
        draft.work.postscale = postscale_of(like, n);
      }
      for (int member = 0; member < n; ++member) {
        const Rows rows = rows_of_member(tensor.rows(), member, n);
        const std::size_t elements = static_cast<std::size_t>(rows.count) * tensor.row_elements();
        const std::byte* in = operation->parts[i].in + bytes_of_rows(tensor, rows.begin);
        draft.work.streams[static_cast<std::size_t>(member)].add(in, member == me ? out : nullptr,
                                                                 elements);
      }
      if (draft.operations.empty() || draft.operations.back() != operation) {
        draft.operations.push_back(operation);
        ++operation->parts_left;
      }
    }
    part_done(operation);
  }
  for (auto& [dtype, draft] : drafts) {
    draft.work.longest = longest_of(draft.work.streams);
    start(std::move(draft.work), std::move(draft.operations));
  }
  return true;
}

// Every rank gathers all vectors and combines them itself, so that all have the same bits.
bool Engine::run_adasum(const Plan& plan, const OperationRef& operation) {
  const Request& request = operation->request;
  const auto n = static_cast<std::size_t>(operation->members->size());
  const auto me = static_cast<std::size_t>(operation->members->index_of(world_.rank));
  operation->parts_left = 1 + request.tensors.size();
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorSpec& tensor = request.tensors[i];
    const DType wire = wire_type(tensor.dtype, request.compression);
    const std::size_t elements = tensor.elements();
    const std::size_t bytes = elements * dtype_size(wire);
    auto vectors = std::make_shared<std::vector<std::byte>>(n * bytes);
    Work work = work_like(plan, request);
    work.movement = Movement::kAllgather;
    work.streams.resize(n);
    for (std::size_t m = 0; m < n; ++m) {
      std::byte* at = vectors->data() + m * bytes;
      work.streams[m].add(m == me ? at : nullptr, at, bytes);
    }
    {
      const FloatEnvironment ieee;
      const Scale prescale = operation->stands_in ? Scale{} : prescale_of(request);
      kernels().convert(wire, vectors->data() + me * bytes, tensor.dtype, operation->parts[i].in,
                        elements, prescale);
    }
    work.longest = bytes;
    start(std::move(work), {operation}, [=, scale = postscale_of(request, 1)] {
      const FloatEnvironment ieee;
      std::vector<const std::byte*> sources;
      for (std::size_t m = 0; m < n; ++m) sources.push_back(vectors->data() + m * bytes);
      std::byte* sum = vectors->data();
      adasum(wire, sum, sources.data(), static_cast<int>(n), elements, scale);
      kernels().convert(tensor.dtype, operation->parts[i].out, wire, sum, elements, {});
    });
  }
  part_done(operation);
  return true;
}

// Hands a work to the plane. `at_end` is called before the operations hear of it.
void Engine::start(Work work, std::vector<OperationRef> operations, std::function<void()> at_end) {
  if (work.longest == 0) {
    if (at_end) at_end();
    for (const OperationRef& operation : operations) part_done(operation);
    return;
  }
  work.number = next_work_++;
  work.members = operations.front()->members;
  std::uint64_t bytes = 0;
  for (const OperationRef& operation : operations) bytes += operation->bytes;
  events_.record({now_ns(), work.plan, bytes, static_cast<std::uint32_t>(operations.size()),
                  EventKind::kPlan});
  Running running{work.plan, std::move(operations), 0, std::move(at_end)};
  running.left = running.operations.size();
  running_.emplace(work.number, std::move(running));
  world_.plane->submit(std::move(work));
}

void Engine::on_segment_done(std::uint64_t work, std::size_t segment) {
  const auto found = running_.find(work);
  Running& running = found->second;
  if (segment == DataPlane::kWhole) {
    Running whole = std::move(running);
    running_.erase(found);
    events_.record({now_ns(), whole.plan, 0, 0, EventKind::kComplete});
    if (whole.at_end) whole.at_end();
    for (const OperationRef& operation : whole.operations) part_done(operation);
    return;
  }
  const OperationRef operation = std::move(running.operations[segment]);
  if (--running.left == 0) {
    events_.record({now_ns(), running.plan, 0, 0, EventKind::kComplete});
    running_.erase(found);
  }
  part_done(operation);
}

void Engine::part_done(const OperationRef& operation) {
  if (--operation->parts_left > 0) return;
  add(counters_.bytes, operation->bytes);
  complete(operation, {});
}

}  // namespace khorovod
