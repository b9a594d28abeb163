// Handed operations as Python sees them: how a frontend submits one, and how its executor gets at
// the works.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/py_engine.h"

namespace nb = nanobind;

namespace khorovod {

namespace {

constexpr OpKind kKinds[] = {OpKind::kAllreduce, OpKind::kBroadcast, OpKind::kAllgather,
                             OpKind::kAlltoall, OpKind::kReducescatter};

// "allreduce", as functions and prefixes of names are spelled.
std::string kind_text(OpKind kind) {
  std::string text = op_name(kind);
  for (char& c : text) c = static_cast<char>(c - 'A' + 'a');
  return text;
}

OpKind kind_from(const std::string& text) {
  for (const OpKind kind : kKinds) {
    if (kind_text(kind) == text) return kind;
  }
  throw nb::value_error(("There is no operation '" + text + "'").c_str());
}

DType dtype_from(const std::string& text) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (dtype_name(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  }
  throw nb::value_error(("The element type '" + text +
                         "' is not supported; use int8 to int64, uint8, uint16, a float "
                         "type or bool")
                            .c_str());
}

nb::list list_of(const std::vector<std::int64_t>& numbers) {
  nb::list result;
  for (const auto number : numbers) result.append(number);
  return result;
}

Nanoseconds nanoseconds(double seconds) { return static_cast<Nanoseconds>(seconds * 1e9); }

}  // namespace

std::int64_t PyEngine::submit_handed(const std::string& kind, nb::object name,
                                     const std::vector<TensorText>& tensors, bool grouped, bool gpu,
                                     std::int64_t token, nb::object result, int op, double prescale,
                                     double postscale, int compression, int root, nb::object splits,
                                     SetId set) {
  PendingRef pending = prepare(kind_from(kind), set);
  Operation& operation = *pending->operation;
  Request& request = operation.request;
  request.handed = gpu ? Handed::kOnGpu : Handed::kOnCpu;
  request.grouped = grouped;
  for (const auto& [dtype, shape] : tensors) request.tensors.push_back({dtype_from(dtype), shape});
  operation.token = token;
  pending->wrap = std::move(result);
  if (request.kind == OpKind::kAllreduce || request.kind == OpKind::kReducescatter) {
    set_reduction(request, op, prescale, postscale, compression);
  }
  if (request.kind == OpKind::kBroadcast) set_root(*pending, root);
  if (request.sizes_vary() || request.kind == OpKind::kReducescatter) {
    need_rows(request, kind.c_str());
  }
  if (request.kind == OpKind::kAlltoall) set_splits(*pending, splits);
  if (request.kind == OpKind::kAllreduce || request.kind == OpKind::kReducescatter) {
    check_reducible(*pending);
  }
  set_name(request, ((grouped ? "grouped_" : "") + kind).c_str(), name);
  return start(std::move(pending), nb::none());
}

void PyEngine::open_handing() {
  check_usable();
  engine_->handing().open();
}

std::optional<HandedWork> PyEngine::next_handed(double timeout) {
  nb::gil_scoped_release release;
  return engine_->handing().next(nanoseconds(timeout));
}

void PyEngine::finish_handed(std::uint64_t work, const std::string& error) {
  nb::gil_scoped_release release;
  engine_->finish_handed(work, error);
}

bool PyEngine::handing_closed(double timeout) {
  nb::gil_scoped_release release;
  return engine_->handing().wait_until_closed(nanoseconds(timeout));
}

void define_handed_work(nb::module_& m) {
  const auto request = [](const HandedWork& work) -> const Request& {
    return work.operations.front()->request;
  };
  nb::class_<HandedWork>(m, "HandedWork", "Operations that run together, handed to a framework.")
      .def_prop_ro("number", [](const HandedWork& work) { return work.number; })
      .def_prop_ro("plan", [](const HandedWork& work) { return work.plan; })
      .def_prop_ro("kind", [=](const HandedWork& work) { return kind_text(request(work).kind); })
      .def_prop_ro("gpu",
                   [=](const HandedWork& work) { return request(work).handed == Handed::kOnGpu; })
      .def_prop_ro("op", [=](const HandedWork& work) { return int(request(work).reduce); })
      .def_prop_ro("prescale", [=](const HandedWork& work) { return request(work).prescale; })
      .def_prop_ro("postscale", [=](const HandedWork& work) { return request(work).postscale; })
      .def_prop_ro("compression",
                   [=](const HandedWork& work) { return int(request(work).compression); })
      .def_prop_ro("root", [=](const HandedWork& work) { return request(work).root; })
      .def_prop_ro("process_set", [=](const HandedWork& work) { return request(work).set; })
      .def_prop_ro("ranks",
                   [](const HandedWork& work) { return work.operations.front()->members->ranks; })
      .def_prop_ro(
          "operations",
          [](const HandedWork& work) {
            nb::list all;
            for (std::size_t i = 0; i < work.operations.size(); ++i) {
              const Operation& operation = *work.operations[i];
              nb::list tensors;
              for (const TensorSpec& tensor : operation.request.tensors) {
                tensors.append(nb::make_tuple(dtype_name(tensor.dtype), list_of(tensor.shape)));
              }
              const nb::object token =
                  operation.stands_in ? nb::none() : nb::object(nb::int_(operation.token));
              all.append(nb::make_tuple(token, tensors, list_of(work.numbers[i])));
            }
            return all;
          },
          "For each its token (None if this rank stands in), types and shapes, and all sizes.");
}

}  // namespace khorovod
