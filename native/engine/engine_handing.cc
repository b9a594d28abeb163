// The engine's part in handed operations: giving them away when their plan comes up, and completing
// them when the executor has done so.
#include "engine/engine.h"

namespace khorovod {

namespace {

// Whether what the plan says of everybody's sizes goes with what this member has asked for.
bool sizes_agree(const Operation& operation, const std::vector<std::int64_t>& numbers, int rank) {
  const Request& request = operation.request;
  const auto n = operation.members->ranks.size();
  const auto me = static_cast<std::size_t>(operation.members->index_of(rank));
  if (request.kind == OpKind::kAllgather) {
    if (numbers.size() != n * request.tensors.size()) return false;
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorSpec& tensor = request.tensors[i];
      std::int64_t total = 0;
      for (std::size_t m = 0; m < n; ++m) total += numbers[i * n + m];
      if (numbers[i * n + me] != tensor.rows() || !tensor.can_have(total)) return false;
    }
  } else if (request.kind == OpKind::kAlltoall) {
    if (numbers.size() != n * n) return false;
    std::int64_t received = 0;
    for (std::size_t m = 0; m < n; ++m) {
      if (numbers[me * n + m] != request.numbers[m]) return false;
      received += numbers[m * n + me];
    }
    return request.tensors.front().can_have(received);
  }
  return true;
}

}  // namespace

bool Engine::hand(const Plan& plan, std::vector<OperationRef>& operations) {
  HandedWork work{next_work_++, plan.number, operations, {}};
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Operation& operation = *operations[i];
    if (!sizes_agree(operation, plan.entries[i].numbers, world_.rank)) return false;
    work.numbers.push_back(plan.entries[i].numbers);
    operation.moved_by = "torch";
    operation.parts_left = 1;
  }
  if (!handing_.is_open()) {
    // Its own operations come with an executor; those of others it meets only after join().
    world_.link->abort(
        Status::error(Code::kInternal, describe_peer(world_.rank) + " cannot stand in for '" +
                                           operations.front()->request.label() +
                                           "' although it has joined: it has no executor. Call the "
                                           "join() of horovod.torch there"));
    return true;
  }
  events_.record(
      {now_ns(), plan.number, 0, static_cast<std::uint32_t>(operations.size()), EventKind::kPlan});
  const std::uint64_t number = work.number;
  running_.emplace(number, Running{plan.number, std::move(operations), 0, {}});
  handing_.put(std::move(work));
  return true;
}

bool Engine::take_handed_results() {
  std::vector<HandedResult> results;
  if (!handing_.take_results(results)) return false;
  last_moved_ = now_ns();
  for (const HandedResult& result : results) {
    const auto found = running_.find(result.work);
    if (found == running_.end()) continue;
    if (!result.error.empty()) {
      give_up(why_handed_work_failed(found->second, result.error));
      break;
    }
    on_segment_done(result.work, DataPlane::kWhole);
  }
  return true;
}

// The executor knows only that a connection has ended, say; the engine may know that a rank has
// left.
Status Engine::why_handed_work_failed(const Running& running, const std::string& error) const {
  // Others may have given up, and left, because of a rank that left before them.
  if (Status known = world_.link->failure(); !known.ok()) return known;
  const Operation& first = *running.operations.front();
  if (const int departed = world_.link->departed();
      departed >= 0 && departed != world_.rank && first.members->contains(departed)) {
    return departure(departed);
  }
  for (const int rank : first.members->ranks) {
    if (rank != world_.rank && world_.link->has_left(rank)) return departure(rank);
  }
  return Status::error(Code::kInternal, describe_peer(world_.rank) + " could not carry out '" +
                                            first.request.label() + "': " + error);
}

void Engine::finish_handed(std::uint64_t work, std::string error) {
  if (handing_.finish(work, std::move(error)) && world_.link) world_.link->wake_self();
}

}  // namespace khorovod
