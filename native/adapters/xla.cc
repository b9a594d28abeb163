#include "adapters/xla.h"

#include <memory>
#include <new>
#include <vector>

#include "adapters/current_world.h"
#include "adapters/queries.h"
#include "adapters/xla_frame.h"

namespace khorovod::xla {

namespace {

// ---------------------------------------------------------------------------------------------------
// Errors

Error* error_of(const Api& api, const Status& status) {
  if (status.ok()) return nullptr;
  ErrorCreateArgs args{sizeof args, nullptr, status.message.c_str(), error_code(status.code)};
  return api.error_create(&args);
}

void tell(const Api& api, Future* future, const Status& status) {
  if (status.ok()) {
    FutureArgs args{sizeof args, nullptr, future};
    api.future_set_available(&args);
  } else {
    FutureErrorArgs args{sizeof args, nullptr, future, error_of(api, status)};
    api.future_set_error(&args);
  }
}

// ---------------------------------------------------------------------------------------------------
// Results. XLA has made room for them when it compiled, so it must be the right room.

Status wrong_room(const char* operation, std::int64_t room, std::int64_t rows) {
  return Status::error(
      Code::kInvalid,
      "XLA has compiled this " + std::string(operation) + " for a result of " +
          std::to_string(room) + " rows, and here are " + std::to_string(rows) +
          ". Compiled, it needs the same number of rows on all ranks, and as many ranks as when it "
          "was traced. Where they differ, switch compilation off (TensorFlow and Keras: "
          "jit_compile=False).");
}

struct Room {
  std::byte* data;
  std::size_t bytes;
  std::int64_t rows;
  std::unique_ptr<std::byte[]> instead{};  // for rows that do not fit
};

Status find_rooms(const CallFrame& frame, std::size_t count, std::vector<Room>& rooms) {
  for (std::size_t i = 0; i < count; ++i) {
    const Buffer* buffer = result_of(frame, static_cast<std::int64_t>(i));
    if (buffer == nullptr) {
      return Status::error(Code::kInvalid,
                           "A compiled call has " + std::to_string(frame.results.size) +
                               " results for " + std::to_string(count) + " tensors");
    }
    const std::int64_t rows = buffer->rank > 0 ? buffer->dims[0] : 0;
    rooms.push_back({static_cast<std::byte*>(buffer->data), bytes_of(*buffer), rows});
  }
  return {};
}

// Where the size of a result is known already.
Status add_results(const Call& call, int rank, const std::vector<Room>& rooms,
                   Operation& operation) {
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    const TensorSpec& spec = operation.request.tensors[i];
    std::size_t bytes = spec.bytes();
    if (call.kind == OpKind::kReducescatter) {
      const Members& members = *operation.members;
      const Rows own = rows_of_member(spec.rows(), members.index_of(rank), members.size());
      bytes = static_cast<std::size_t>(own.count) * spec.row_elements() * dtype_size(spec.dtype);
      if (own.count != rooms[i].rows) return wrong_room(prefix_of(call), rooms[i].rows, own.count);
    }
    if (bytes != rooms[i].bytes) {
      return Status::error(Code::kInvalid, "A compiled " + std::string(prefix_of(call)) +
                                               " has a result of " +
                                               std::to_string(rooms[i].bytes) + " bytes, not " +
                                               std::to_string(bytes));
    }
    operation.parts[i].out = rooms[i].data;
  }
  return {};
}

// A compiled call on its way.
struct Running {
  const char* operation;
  std::vector<Room> rooms;

  std::byte* room_for(std::size_t part, std::size_t bytes) {
    Room& room = rooms[part];
    if (bytes == room.bytes) return room.data;
    // What the others have sent must go somewhere; the outcome is an error.
    room.instead.reset(new (std::nothrow) std::byte[bytes]);
    return room.instead.get();
  }

  Status outcome(const Operation& done) const {
    if (!done.status.ok() || !done.request.sizes_vary()) return done.status;
    std::vector<std::int64_t> rows = done.numbers;
    if (done.request.kind == OpKind::kAlltoall) {
      rows.assign(1, 0);
      for (const std::int64_t count : done.numbers) rows.front() += count;
    }
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      if (rows[i] != rooms[i].rows) return wrong_room(operation, rooms[i].rows, rows[i]);
    }
    return {};
  }
};

// ---------------------------------------------------------------------------------------------------
// Calls

Status prepare(const CallFrame& frame, const Call& call, std::int64_t links, Engine& engine,
               const OperationRef& operation, const std::shared_ptr<Running>& running) {
  Status status = begin(call, engine, *operation);
  if (status.ok()) status = add_arguments(frame, links, *operation);
  if (status.ok()) status = check(call, std::nullopt, *operation);
  if (status.ok()) status = find_rooms(frame, operation->parts.size(), running->rooms);
  if (!status.ok()) return status;
  running->operation = prefix_of(call);
  if (operation->request.sizes_vary()) {
    operation->allocate = [running](std::size_t part, std::size_t bytes) {
      return running->room_for(part, bytes);
    };
  } else {
    status = add_results(call, engine.rank(), running->rooms, *operation);
  }
  if (status.ok()) put_name_in(operation->request, call, engine);
  return status;
}

Error* run(CallFrame* frame, const Call& call, std::int64_t links) {
  const Api& api = *frame->api;
  const OperationRef operation = std::make_shared<Operation>();
  const auto running = std::make_shared<Running>();
  CurrentWorld world;
  Status status = current_world(world);
  if (status.ok()) status = prepare(*frame, call, links, *world.engine, operation, running);
  if (!status.ok()) return error_of(api, status);
  Engine& engine = *world.engine;
  FutureArgs future{sizeof future, nullptr, nullptr};
  if (operation->members->size() > 1 && has_futures(api) && has(*frame, &CallFrame::future)) {
    if (Error* error = api.future_create(&future)) return error;
  }
  if (future.future == nullptr) {
    status = run_here(engine, operation);
    return error_of(api, status.ok() ? running->outcome(*operation) : status);
  }
  frame->future = future.future;
  // Whoever runs it has a reference to the operation. The frame is gone by then, the buffers are
  // not, and the table of functions is XLA's own.
  operation->on_done = [&api, running, of = operation.get(), told = future.future](const Status&) {
    tell(api, told, running->outcome(*of));
  };
  status = engine.submit(operation, false, kPatience);
  if (!status.ok()) tell(api, future.future, status);
  return nullptr;
}

struct Query {
  std::string_view name;
  Answer* answer;
};

constexpr Query kQueries[] = {
    {"size", size_of_set},      {"rank", rank_in_set},         {"local_size", local_size},
    {"local_rank", local_rank}, {"included", included_in_set},
};

Status ask(const CallFrame& frame, const std::string& operation) {
  for (const Query& query : kQueries) {
    if (query.name != operation) continue;
    const Buffer* result = result_of(frame, 0);
    if (result == nullptr || result->type != kS32 || bytes_of(*result) != sizeof(std::int32_t)) {
      return Status::error(Code::kInvalid, "A compiled " + operation + " gives one int32");
    }
    AttributeReader attributes(frame.attributes);
    const std::int64_t set = attributes.number("process_set", 0);
    if (!attributes.status().ok()) return attributes.status();
    return query.answer(set, *static_cast<std::int32_t*>(result->data));
  }
  return Status::error(Code::kInvalid, "There is no operation '" + operation + "'");
}

// XLA does not call for work if it does not know this version of the interface. Those before the
// table of functions was given along are the first.
void tell_version(const CallFrame& frame, const MetadataExtension& asked) {
  asked.metadata->version.major = frame.api == nullptr ? 0 : frame.api->version.major;
  asked.metadata->version.minor = frame.api == nullptr ? 1 : frame.api->version.minor;
}

}  // namespace

Error* handle(CallFrame* frame) {
  for (const Extension* one = frame->extension; one != nullptr; one = one->next) {
    if (one->type != kMetadataExtension) continue;
    tell_version(*frame, *reinterpret_cast<const MetadataExtension*>(one));
    return nullptr;
  }
  const std::string operation = operation_of(*frame);
  Call call;
  std::int64_t links = 0;
  Status status;
  if (!read_call(*frame, operation, call, links, status)) {
    return error_of(*frame->api, ask(*frame, operation));
  }
  return status.ok() ? run(frame, call, links) : error_of(*frame->api, status);
}

}  // namespace khorovod::xla
