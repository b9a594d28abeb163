// What the arguments of Python's operations mean, and what results they get.
#include "bindings/py_engine.h"
#include "engine/misuse.h"

namespace nb = nanobind;

namespace khorovod {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw nb::value_error(why.c_str()); }

}  // namespace

void PyEngine::need_rows(const Request& request, const char* operation) const {
  check(check_rows(request, operation));
}

void PyEngine::set_splits(Pending& pending, const nb::object& splits) const {
  std::optional<std::vector<std::int64_t>> given;
  if (!splits.is_none()) {
    given.emplace();
    for (const nb::handle item : splits) given->push_back(nb::cast<std::int64_t>(item));
  }
  check(put_splits_in(pending.operation->request, given, pending.operation->members->size()));
}

// ---------------------------------------------------------------------------------------------------
// Operations

PyEngine::PendingRef PyEngine::allreduce(nb::object name, nb::object input, nb::object output,
                                         int op, double prescale, double postscale, int compression,
                                         SetId set) {
  PendingRef pending = prepare(OpKind::kAllreduce, set);
  Request& request = pending->operation->request;
  set_reduction(request, op, prescale, postscale, compression);
  add_tensor(*pending, input, output);
  check_reducible(*pending);
  set_name(request, "allreduce", name);
  return pending;
}

PyEngine::PendingRef PyEngine::grouped_allreduce(nb::object name, nb::list inputs, nb::list outputs,
                                                 int op, double prescale, double postscale,
                                                 int compression, SetId set) {
  PendingRef pending = prepare(OpKind::kAllreduce, set);
  Request& request = pending->operation->request;
  set_reduction(request, op, prescale, postscale, compression);
  add_group(*pending, inputs, outputs);
  check_reducible(*pending);
  set_name(request, "grouped_allreduce", name);
  return pending;
}

PyEngine::PendingRef PyEngine::allgather(nb::object name, nb::object input, nb::object wrap,
                                         SetId set) {
  PendingRef pending = prepare(OpKind::kAllgather, set);
  add_input(*pending, input);
  allocate_results(*pending, std::move(wrap));
  need_rows(pending->operation->request, "allgather");
  set_name(pending->operation->request, "allgather", name);
  return pending;
}

PyEngine::PendingRef PyEngine::grouped_allgather(nb::object name, nb::list inputs, nb::object wrap,
                                                 SetId set) {
  PendingRef pending = prepare(OpKind::kAllgather, set);
  add_inputs(*pending, inputs);
  allocate_results(*pending, std::move(wrap));
  need_rows(pending->operation->request, "allgather");
  set_name(pending->operation->request, "grouped_allgather", name);
  return pending;
}

PyEngine::PendingRef PyEngine::broadcast(nb::object name, nb::object input, nb::object output,
                                         int root, SetId set) {
  PendingRef pending = prepare(OpKind::kBroadcast, set);
  set_root(*pending, root);
  add_tensor(*pending, input, output);
  set_name(pending->operation->request, "broadcast", name);
  return pending;
}

PyEngine::PendingRef PyEngine::alltoall(nb::object name, nb::object input, nb::object splits,
                                        nb::object wrap, SetId set) {
  PendingRef pending = prepare(OpKind::kAlltoall, set);
  add_input(*pending, input);
  allocate_results(*pending, std::move(wrap));
  Request& request = pending->operation->request;
  need_rows(request, "alltoall");
  set_splits(*pending, splits);
  set_name(request, "alltoall", name);
  return pending;
}

PyEngine::PendingRef PyEngine::reducescatter(nb::object name, nb::object input, nb::object wrap,
                                             int op, double prescale, double postscale,
                                             int compression, SetId set) {
  PendingRef pending = prepare(OpKind::kReducescatter, set);
  Request& request = pending->operation->request;
  set_reduction(request, op, prescale, postscale, compression);
  add_input(*pending, input);
  allocate_results(*pending, std::move(wrap));
  need_rows(request, "reducescatter");
  check_reducible(*pending);
  set_name(request, "reducescatter", name);
  return pending;
}

PyEngine::PendingRef PyEngine::grouped_reducescatter(nb::object name, nb::list inputs,
                                                     nb::object wrap, int op, double prescale,
                                                     double postscale, int compression, SetId set) {
  PendingRef pending = prepare(OpKind::kReducescatter, set);
  Request& request = pending->operation->request;
  set_reduction(request, op, prescale, postscale, compression);
  add_inputs(*pending, inputs);
  allocate_results(*pending, std::move(wrap));
  need_rows(request, "reducescatter");
  check_reducible(*pending);
  set_name(request, "grouped_reducescatter", name);
  return pending;
}

PyEngine::PendingRef PyEngine::barrier(SetId set) {
  PendingRef pending = prepare(OpKind::kBarrier, set);
  set_name(pending->operation->request, "barrier", nb::none());
  return pending;
}

PyEngine::PendingRef PyEngine::join() {
  PendingRef pending = prepare(OpKind::kJoin, 0);
  Request& request = pending->operation->request;
  request.name = "join.noname";
  request.cacheable = false;
  request.numbers = {engine_->next_unnamed_number(0)};
  return pending;
}

PyEngine::PendingRef PyEngine::add_process_sets(std::vector<std::vector<int>> sets) {
  PendingRef pending = prepare(OpKind::kAddProcessSets, 0);
  Request& request = pending->operation->request;
  request.name = "add_process_set.noname";
  request.cacheable = false;
  for (const auto& ranks : sets) {
    request.numbers.push_back(static_cast<std::int64_t>(ranks.size()));
    request.numbers.insert(request.numbers.end(), ranks.begin(), ranks.end());
  }
  return pending;
}

PyEngine::PendingRef PyEngine::remove_process_set(std::uint32_t set) {
  PendingRef pending = prepare(OpKind::kRemoveProcessSet, 0);
  Request& request = pending->operation->request;
  request.name = "remove_process_set.noname";
  request.cacheable = false;
  request.numbers = {set};
  return pending;
}

// ---------------------------------------------------------------------------------------------------
// Parts of them

PyEngine::PendingRef PyEngine::prepare(OpKind kind, SetId id) {
  check_usable();
  reap();
  if (!id.has_value()) {
    throw nb::type_error(
        "The process set is not registered; use add_process_set() or init(process_sets=[...])");
  }
  const std::uint32_t set = *id;
  auto pending = std::make_unique<Pending>();
  pending->operation = std::make_shared<Operation>();
  Operation& operation = *pending->operation;
  operation.request.kind = kind;
  operation.request.set = set;
  operation.members = engine_->members(set);
  check(check_members(operation.members, set, rank()));
  return pending;
}

void PyEngine::add_tensor(Pending& pending, const nb::object& input, const nb::object& output) {
  const bool in_place = output.is(input);
  if (!in_place) pending.input.open(input, BufferView::Access::kRead);
  pending.output.open(output, BufferView::Access::kWrite);
  const BufferView& in = in_place ? pending.output : pending.input;
  if (in.dtype() != pending.output.dtype() || in.bytes() != pending.output.bytes()) {
    refuse("The output must have the type and size of the input");
  }
  pending.outputs = output;
  pending.operation->request.tensors.push_back({in.dtype(), in.shape()});
  pending.operation->parts.push_back({in.data(), pending.output.data()});
}

void PyEngine::add_group(Pending& pending, const nb::list& inputs, const nb::list& outputs) {
  if (inputs.size() != outputs.size()) refuse("There must be as many outputs as inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const nb::object input = inputs[i];
    const nb::object output = outputs[i];
    pending.more.push_back(std::make_unique<BufferView>());
    BufferView& out = *pending.more.back();
    out.open(output, BufferView::Access::kWrite);
    const BufferView* in = &out;
    if (!output.is(input)) {
      pending.more.push_back(std::make_unique<BufferView>());
      pending.more.back()->open(input, BufferView::Access::kRead);
      in = pending.more.back().get();
    }
    if (in->dtype() != out.dtype() || in->bytes() != out.bytes()) {
      refuse("Every output must have the type and size of its input");
    }
    pending.operation->request.tensors.push_back({in->dtype(), in->shape()});
    pending.operation->parts.push_back({in->data(), out.data()});
  }
  pending.outputs = outputs;
  pending.operation->request.grouped = true;
}

void PyEngine::add_input(Pending& pending, const nb::object& input) {
  pending.input.open(input, BufferView::Access::kRead);
  pending.operation->request.tensors.push_back({pending.input.dtype(), pending.input.shape()});
  pending.operation->parts.push_back({pending.input.data(), nullptr});
}

void PyEngine::add_inputs(Pending& pending, const nb::list& inputs) {
  for (const nb::handle input : inputs) {
    pending.more.push_back(std::make_unique<BufferView>());
    BufferView& in = *pending.more.back();
    in.open(input, BufferView::Access::kRead);
    pending.operation->request.tensors.push_back({in.dtype(), in.shape()});
    pending.operation->parts.push_back({in.data(), nullptr});
  }
  pending.operation->request.grouped = true;
}

// The engine asks for memory when it knows how much, from whatever thread drives it; the operation
// is gone before its Pending is.
void PyEngine::allocate_results(Pending& pending, nb::object wrap) {
  pending.wrap = std::move(wrap);
  pending.memory.resize(pending.operation->parts.size());
  pending.operation->allocate = [pool = pool_, &memory = pending.memory](std::size_t part,
                                                                         std::size_t bytes) {
    memory[part] = pool->take(bytes);
    return memory[part].get();
  };
}

void PyEngine::set_root(Pending& pending, int root) const {
  check(put_root_in(pending.operation->request, *pending.operation->members, root));
}

void PyEngine::set_reduction(Request& request, int op, double prescale, double postscale,
                             int compression) const {
  check(put_reduction_in(request, op, prescale, postscale, compression));
}

void PyEngine::check_reducible(const Pending& pending) const {
  const Operation& operation = *pending.operation;
  check(khorovod::check_reducible(operation.request, operation.members->size()));
}

void PyEngine::set_name(Request& request, const char* prefix, const nb::object& name) {
  if (name.is_none()) {
    // Matches across ranks by the order of calls: only what is unnamed and sound counts, whether
    // the rank waits for it or not. Never comes again, so there is nothing to cache.
    request.name = Request::unnamed_name(engine_->take_unnamed_number(request.set));
    request.cacheable = false;
  } else {
    const nb::str text(name);
    Py_ssize_t size = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (utf8 == nullptr) throw nb::python_error();  // a lone surrogate, say: a ValueError
    request.name.assign(prefix).append(".").append(utf8, static_cast<std::size_t>(size));
  }
}

// ---------------------------------------------------------------------------------------------------
// Results

nb::object PyEngine::tensor_of(Pending& pending, std::size_t part, std::int64_t rows) const {
  const TensorSpec& tensor = pending.operation->request.tensors[part];
  const std::size_t bytes =
      static_cast<std::size_t>(rows) * tensor.row_elements() * dtype_size(tensor.dtype);
  nb::list shape;
  shape.append(rows);
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) shape.append(tensor.shape[i]);
  return pending.wrap(Memory{std::move(pending.memory[part]), bytes}, nb::tuple(shape), part);
}

nb::object PyEngine::result_of(Pending& pending) {
  const Operation& operation = *pending.operation;
  const auto& numbers = operation.numbers;
  if (operation.request.is_handed()) return pending.wrap();
  switch (operation.request.kind) {
    case OpKind::kAllgather:
    case OpKind::kReducescatter: {
      if (!operation.request.grouped) return tensor_of(pending, 0, numbers.front());
      nb::list tensors;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        tensors.append(tensor_of(pending, i, numbers[i]));
      }
      return std::move(tensors);
    }
    case OpKind::kAlltoall: {
      nb::list received;
      std::int64_t rows = 0;
      for (const auto count : numbers) {
        received.append(count);
        rows += count;
      }
      return nb::make_tuple(tensor_of(pending, 0, rows), received);
    }
    case OpKind::kJoin:
      engine_->skip_unnamed_numbers(0, numbers[1]);
      return nb::int_(numbers.front());
    case OpKind::kAddProcessSets: {
      nb::list ids;
      for (const auto id : numbers) {
        ids.append(id);
        engine_->restart_unnamed_numbers(static_cast<std::uint32_t>(id));
      }
      return std::move(ids);
    }
    default:
      return pending.outputs.is_valid() ? std::move(pending.outputs) : nb::none();
  }
}

}  // namespace khorovod
