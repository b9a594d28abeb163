// Results that came with a decision, and decisions about process sets.
#include <cstring>

#include "base/float_environment.h"
#include "engine/engine.h"

namespace khorovod {

namespace {

// Takes bytes from the front of a result.
class ResultReader {
 public:
  explicit ResultReader(Bytes bytes) : rest_(bytes) {}

  // Empty if there are fewer.
  Bytes take(std::size_t bytes) {
    if (bytes > rest_.size()) {
      failed_ = true;
      return {};
    }
    const Bytes front = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return front;
  }
  bool ok() const { return !failed_; }
  bool done() const { return !failed_ && rest_.empty(); }

 private:
  Bytes rest_;
  bool failed_ = false;
};

void copy_result(std::byte* out, DType dtype, const std::byte* from, DType wire,
                 std::size_t elements) {
  if (elements == 0) return;
  if (wire == dtype) {
    std::memcpy(out, from, elements * dtype_size(dtype));
  } else {
    kernels().convert(dtype, out, wire, from, elements, {});
  }
}

}  // namespace

// Puts the result that came with a decision into the operation's outputs; false if it makes no
// sense.
bool Engine::take_result(Operation& operation, const PlanEntry& entry) {
  const Request& request = operation.request;
  if (request.kind == OpKind::kAlltoall || request.is_handed()) return false;
  if (request.kind > OpKind::kReducescatter) {
    if (request.kind == OpKind::kJoin && entry.numbers.size() != 2) return false;
    operation.numbers = entry.numbers;
    return change_process_sets(operation, entry);
  }
  const FloatEnvironment ieee;
  const auto n = static_cast<std::size_t>(operation.members->size());
  const int me = operation.members->index_of(world_.rank);
  ResultReader result(entry.result);
  if (request.kind == OpKind::kAllgather && entry.numbers.size() != n * request.tensors.size()) {
    return false;
  }
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorSpec& tensor = request.tensors[i];
    const DType wire = wire_type(tensor.dtype, request.compression);
    std::size_t elements = tensor.elements();
    std::size_t skip = 0;  // elements of other members' rows before and after
    std::size_t rest = 0;
    if (request.kind == OpKind::kAllgather) {
      std::int64_t rows = 0;
      for (std::size_t m = 0; m < n; ++m) rows += entry.numbers[i * n + m];
      if (!tensor.can_have(rows)) return false;
      elements = static_cast<std::size_t>(rows) * tensor.row_elements();
      operation.numbers.push_back(rows);
    } else if (request.kind == OpKind::kReducescatter) {
      const Rows rows = rows_of_member(tensor.rows(), me, static_cast<int>(n));
      skip = static_cast<std::size_t>(rows.begin) * tensor.row_elements();
      rest = elements - skip;
      elements = static_cast<std::size_t>(rows.count) * tensor.row_elements();
      rest -= elements;
      operation.numbers.push_back(rows.count);
    }
    const std::size_t size = dtype_size(wire);
    result.take(skip * size);
    const Bytes mine = result.take(elements * size);
    result.take(rest * size);
    if (!result.ok()) return false;
    std::byte* out = output(operation, i, elements * dtype_size(tensor.dtype));
    if (out == nullptr && elements > 0) return true;  // the world has been told
    copy_result(out, tensor.dtype, mine.data(), wire, elements);
  }
  return result.done();
}

MembersRef Engine::members(std::uint32_t set) const {
  if (set == 0) return everybody_;
  const std::lock_guard lock(submit_mutex_);
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : found->second;
}

std::vector<MembersRef> Engine::process_sets() const {
  const std::lock_guard lock(submit_mutex_);
  std::vector<MembersRef> result;
  for (const auto& [id, members] : sets_) result.push_back(members);
  return result;
}

bool Engine::change_process_sets(Operation& operation, const PlanEntry& entry) {
  const auto& numbers = operation.request.numbers;
  if (operation.request.kind == OpKind::kRemoveProcessSet) {
    if (numbers.size() != 1) return false;
    const auto id = static_cast<std::uint32_t>(numbers.front());
    {
      const std::lock_guard lock(submit_mutex_);
      sets_.erase(id);
    }
    fail_operations_of(id);
    return true;
  }
  if (operation.request.kind != OpKind::kAddProcessSets) return true;
  std::vector<std::vector<int>> added = new_sets(operation.request, world_.size);
  if (added.size() != entry.numbers.size()) return false;
  const std::lock_guard lock(submit_mutex_);
  for (std::size_t i = 0; i < added.size(); ++i) {
    const auto id = static_cast<std::uint32_t>(entry.numbers[i]);
    sets_[id] = std::make_shared<Members>(Members{id, std::move(added[i])});
  }
  return true;
}

// What was announced and not decided on before a set was removed never will be. What is still in
// the queue fails when its turn comes.
void Engine::fail_operations_of(std::uint32_t set) {
  std::vector<OperationRef> lost;
  for (auto it = announced_.begin(); it != announced_.end();) {
    const auto next = std::next(it);
    if (it->first.set == set) lost.push_back(std::move(announced_.extract(it).mapped()));
    it = next;
  }
  for (auto it = cache_.begin(); it != cache_.end();) {
    if (it->first.set != set) {
      ++it;
      continue;
    }
    if (it->second->announced != nullptr) lost.push_back(std::move(it->second->announced));
    cache_by_id_.erase(it->second->id);
    it = cache_.erase(it);
  }
  for (OperationRef& operation : lost) {
    complete(std::move(operation),
             Status::error(Code::kAborted, "Process set " + std::to_string(set) +
                                               " was removed while the operation was pending"));
  }
}

}  // namespace khorovod
