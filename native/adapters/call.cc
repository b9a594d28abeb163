#include "adapters/call.h"

#include "engine/misuse.h"

namespace khorovod {

const char* prefix_of(const Call& call) {
  switch (call.kind) {
    case OpKind::kAllreduce:
      return call.grouped ? "grouped_allreduce" : "allreduce";
    case OpKind::kAllgather:
      return call.grouped ? "grouped_allgather" : "allgather";
    case OpKind::kReducescatter:
      return call.grouped ? "grouped_reducescatter" : "reducescatter";
    case OpKind::kAlltoall:
      return "alltoall";
    default:
      return "broadcast";
  }
}

Status begin(const Call& call, const Engine& engine, Operation& operation) {
  Request& request = operation.request;
  request.kind = call.kind;
  request.grouped = call.grouped;
  request.set = static_cast<std::uint32_t>(call.set);
  operation.members = call.set == request.set ? engine.members(request.set) : nullptr;
  Status status = check_members(operation.members, request.set, engine.rank());
  if (status.ok() && call.reduces()) {
    status = put_reduction_in(request, static_cast<int>(call.reduce), call.prescale, call.postscale,
                              static_cast<int>(call.compression));
  }
  return status;
}

Status check(const Call& call, const std::optional<std::vector<std::int64_t>>& splits,
             Operation& operation) {
  Request& request = operation.request;
  Status status;
  if (request.sizes_vary() || request.kind == OpKind::kReducescatter) {
    status = check_rows(request, prefix_of(call));
  }
  if (status.ok() && call.reduces()) status = check_reducible(request, operation.members->size());
  if (status.ok() && call.kind == OpKind::kBroadcast) {
    status = put_root_in(request, *operation.members, static_cast<int>(call.root));
  }
  if (status.ok() && call.kind == OpKind::kAlltoall) {
    status = put_splits_in(request, splits, operation.members->size());
  }
  return status;
}

void put_name_in(Request& request, const Call& call, Engine& engine) {
  if (call.kind == OpKind::kJoin) {
    request.name = "join.noname";
    request.numbers = {engine.next_unnamed_number(0)};
    request.cacheable = false;
  } else if (call.name.empty()) {
    request.name = Request::unnamed_name(engine.take_unnamed_number(request.set));
    request.cacheable = false;
  } else {
    request.name.assign(prefix_of(call)).append(".").append(call.name);
  }
}

Status run_here(Engine& engine, const OperationRef& operation) {
  const Status status = engine.submit(operation, true);
  while (status.ok() && !operation->is_done()) engine.wait(*operation);
  return status.ok() ? operation->status : status;
}

}  // namespace khorovod
