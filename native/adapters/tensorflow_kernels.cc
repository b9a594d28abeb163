// The collective operations: from TensorFlow's tensors to the engine, and back.
//
// A kernel is asynchronous: it submits an operation and returns; the engine's completion pool tells
// TensorFlow when it is done. So any number of them are in flight, and none keeps a thread of
// TensorFlow's. Memory needs no references of ours: a kernel's context keeps the inputs, and the
// outputs once they are allocated, until TensorFlow is told.
#include "adapters/tensorflow_kernels.h"

#include <charconv>
#include <optional>
#include <vector>

#include "adapters/current_world.h"
#include "adapters/tensorflow_done.h"
#include "adapters/tensorflow_handles.h"
#include "adapters/tensorflow_tensors.h"
#include "engine/misuse.h"

namespace khorovod::tensorflow {

namespace {

// A graph's operations come one after the other, some microseconds apart: worth waiting for a few
// of them before the engine thread is woken, but the graph may wait for the first.
constexpr Nanoseconds kPatience = 50 * kMicrosecond;

// Iterations of a loop may overlap, and then each needs a name of its own. So many names are used
// in turn: more than TensorFlow starts at once, and not so many as to be new every time.
constexpr std::int64_t kLoopNames = 256;

// What the attributes of an operation say.
struct Kernel {
  OpKind kind;
  bool grouped;
  std::string name;
  std::int64_t set = 0;
  std::int64_t waits = 0;
  std::int64_t reduce = 0;
  std::int64_t compression = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int64_t root = 0;
  std::int64_t has_splits = 0;

  bool reduces() const { return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter; }
};

// ---------------------------------------------------------------------------------------------------
// Attributes

class Attributes {
 public:
  explicit Attributes(OpKernelConstruction* construction) : construction_(construction) {}
  ~Attributes() {
    if (!is_ok(status_)) api().OpKernelConstruction_Failure(construction_, status_.get());
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  std::int64_t number(const char* name) {
    std::int64_t value = 0;
    if (is_ok(status_)) {
      api().OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_.get());
    }
    return value;
  }

  std::string text(const char* name) {
    std::int32_t elements = 0;
    std::int32_t size = 0;
    std::string value;
    if (!is_ok(status_)) return value;
    api().OpKernelConstruction_GetAttrSize(construction_, name, &elements, &size, status_.get());
    if (!is_ok(status_) || size <= 0) return value;
    value.resize(static_cast<std::size_t>(size));
    api().OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(),
                                             status_.get());
    return value;
  }

  double factor(const char* name) {
    const std::string value = text(name);
    double result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (is_ok(status_) && (error != std::errc() || end != value.data() + value.size())) {
      api().SetStatus(status_.get(), kInvalidArgument,
                      (std::string(name) + " is '" + value + "', which is no number").c_str());
    }
    return result;
  }

 private:
  OpKernelConstruction* construction_;
  StatusPtr status_ = new_status();
};

template <OpKind kKind, bool kGrouped>
void* create(OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>(Kernel{.kind = kKind, .grouped = kGrouped, .name = {}});
  Attributes attributes(construction);
  kernel->waits = attributes.number("waits");
  if constexpr (kKind != OpKind::kJoin) {
    kernel->name = attributes.text("tensor_name");
    kernel->set = attributes.number("process_set_id");
  }
  if constexpr (kKind == OpKind::kAllreduce || kKind == OpKind::kReducescatter) {
    kernel->reduce = attributes.number("reduce_op");
    kernel->compression = attributes.number("compression");
    kernel->prescale = attributes.factor("prescale_factor");
    kernel->postscale = attributes.factor("postscale_factor");
  }
  if constexpr (kKind == OpKind::kBroadcast) kernel->root = attributes.number("root_rank");
  if constexpr (kKind == OpKind::kAlltoall) kernel->has_splits = attributes.number("has_splits");
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// ---------------------------------------------------------------------------------------------------
// From an operation's inputs to a request

// "allreduce", as the names of operations begin.
const char* prefix_of(const Kernel& kernel) {
  switch (kernel.kind) {
    case OpKind::kAllreduce:
      return kernel.grouped ? "grouped_allreduce" : "allreduce";
    case OpKind::kAllgather:
      return kernel.grouped ? "grouped_allgather" : "allgather";
    case OpKind::kReducescatter:
      return kernel.grouped ? "grouped_reducescatter" : "reducescatter";
    case OpKind::kAlltoall:
      return "alltoall";
    default:
      return "broadcast";
  }
}

void put_name_in(Request& request, const Kernel& kernel, OpKernelContext* context, Engine& engine) {
  if (kernel.kind == OpKind::kJoin) {
    request.name = "join.noname";
    request.numbers = {engine.next_unnamed_number(0)};
    request.cacheable = false;
  } else if (kernel.name.empty()) {
    request.name = Request::unnamed_name(engine.take_unnamed_number(request.set));
    request.cacheable = false;
  } else {
    request.name.assign(prefix_of(kernel)).append(".").append(kernel.name);
    const std::int64_t iteration = api().GetIterId != nullptr ? api().GetIterId(context) : 0;
    if (iteration > 0) request.name += "#" + std::to_string(iteration % kLoopNames);
  }
}

khorovod::Status check(const Kernel& kernel, OpKernelContext* context, Operation& operation) {
  Request& request = operation.request;
  khorovod::Status status;
  if (request.sizes_vary() || request.kind == OpKind::kReducescatter) {
    status = check_rows(request, prefix_of(kernel));
  }
  if (status.ok() && kernel.reduces()) status = check_reducible(request);
  if (status.ok() && kernel.kind == OpKind::kBroadcast) {
    status = put_root_in(request, *operation.members, static_cast<int>(kernel.root));
  }
  if (status.ok() && kernel.kind == OpKind::kAlltoall) {
    std::optional<std::vector<std::int64_t>> splits;
    if (kernel.has_splits != 0) status = read_splits(context, splits.emplace());
    if (status.ok()) status = put_splits_in(request, splits, operation.members->size());
  }
  return status;
}

khorovod::Status add_outputs(const Kernel& kernel, OpKernelContext* context, int rank,
                             const OperationRef& operation) {
  khorovod::Status status;
  for (std::size_t i = 0; i < operation->parts.size() && status.ok(); ++i) {
    if (kernel.kind == OpKind::kAllreduce || kernel.kind == OpKind::kBroadcast) {
      status = add_like_input(context, i, *operation);
    } else if (kernel.kind == OpKind::kReducescatter) {
      const Members& members = *operation->members;
      const std::int64_t rows = operation->request.tensors[i].rows();
      const Rows own = rows_of_member(rows, members.index_of(rank), members.size());
      status = add_rows(context, i, own.count, *operation);
    }
  }
  if (status.ok() && operation->request.sizes_vary()) {
    // The engine calls it as long as the operation is not done, and so has its context.
    operation->allocate = [context, of = operation.get()](std::size_t part, std::size_t bytes) {
      const TensorSpec& spec = of->request.tensors[part];
      const std::size_t row = spec.row_elements() * dtype_size(spec.dtype);
      add_rows(context, part, static_cast<std::int64_t>(bytes / row), *of);
      return of->parts[part].out;
    };
  }
  return status;
}

khorovod::Status prepare(const Kernel& kernel, OpKernelContext* context, Engine& engine,
                         const OperationRef& operation) {
  Request& request = operation->request;
  request.kind = kernel.kind;
  request.grouped = kernel.grouped;
  request.set = static_cast<std::uint32_t>(kernel.set);
  operation->members = kernel.set == request.set ? engine.members(request.set) : nullptr;
  khorovod::Status status = check_members(operation->members, request.set, engine.rank());
  if (status.ok() && kernel.reduces()) {
    status = put_reduction_in(request, static_cast<int>(kernel.reduce), kernel.prescale,
                              kernel.postscale, static_cast<int>(kernel.compression));
  }
  const int inputs = kernel.kind == OpKind::kAlltoall ? 1 : api().NumInputs(context);
  for (int i = 0; i < inputs && status.ok(); ++i) status = add_input(context, i, *operation);
  if (status.ok()) status = check(kernel, context, *operation);
  if (status.ok()) status = add_outputs(kernel, context, engine.rank(), operation);
  if (status.ok()) put_name_in(request, kernel, context, engine);
  return status;
}

// ---------------------------------------------------------------------------------------------------
// And back

khorovod::Status take_results(OpKernelContext* context, Engine& engine, Operation& operation) {
  const Request& request = operation.request;
  const auto& numbers = operation.numbers;
  khorovod::Status status;
  if (request.kind == OpKind::kJoin) {
    engine.skip_unnamed_numbers(0, numbers[1]);
    return add_numbers(context, 0, nullptr, 0, {static_cast<std::int32_t>(numbers.front())});
  }
  if (request.kind == OpKind::kAllgather) {
    for (std::size_t i = 0; i < numbers.size() && status.ok(); ++i) {
      // The engine does not ask for memory of which it needs none.
      if (operation.parts[i].out == nullptr) status = add_rows(context, i, numbers[i], operation);
    }
  }
  if (request.kind == OpKind::kAlltoall) {
    std::int64_t rows = 0;
    std::vector<std::int32_t> received;
    for (const std::int64_t count : numbers) {
      rows += count;
      received.push_back(static_cast<std::int32_t>(count));
    }
    if (operation.parts.front().out == nullptr) status = add_rows(context, 0, rows, operation);
    const auto members = static_cast<std::int64_t>(received.size());
    if (status.ok()) status = add_numbers(context, 1, &members, 1, received);
  }
  return status;
}

void conclude(OpKernelContext* context, Engine& engine, Operation& operation) {
  khorovod::Status status = operation.status;
  if (status.ok()) status = take_results(context, engine, operation);
  if (!status.ok()) fail(context, status);
}

void compute(void* made, OpKernelContext* context, AsyncOpKernelDoneCallback* callback) {
  const auto& kernel = *static_cast<const Kernel*>(made);
  const OperationRef operation = std::make_shared<Operation>();
  CurrentWorld world;
  khorovod::Status status = current_world(world);
  if (status.ok()) status = prepare(kernel, context, *world.engine, operation);
  if (!status.ok()) {
    fail(context, status);
    return api().RunAsyncOpKernelDoneCallback(callback);
  }
  Engine& engine = *world.engine;
  std::shared_ptr<Done> done;
  if (kernel.waits == 0 && operation->members->size() > 1) done = Done::copy_of(callback);
  if (done == nullptr) {
    status = engine.submit(operation, true);
    while (status.ok() && !operation->is_done()) engine.wait(*operation);
    if (status.ok()) {
      conclude(context, engine, *operation);
    } else {
      fail(context, status);
    }
    return api().RunAsyncOpKernelDoneCallback(callback);
  }
  // Whoever runs it has a reference to the operation, and the engine lives until all has run.
  operation->on_done = [context, &engine, of = operation.get(), done](const khorovod::Status&) {
    conclude(context, engine, *of);
    done->run();
  };
  status = engine.submit(operation, false, kPatience);
  if (!status.ok()) {
    fail(context, status);
    api().RunAsyncOpKernelDoneCallback(callback);
  }
}

// ---------------------------------------------------------------------------------------------------
// Registration

struct Entry {
  const char* operation;
  CreateKernel* create;
};

constexpr Entry kEntries[] = {
    {"HorovodAllreduce", create<OpKind::kAllreduce, false>},
    {"HorovodGroupedAllreduce", create<OpKind::kAllreduce, true>},
    {"HorovodAllgather", create<OpKind::kAllgather, false>},
    {"HorovodGroupedAllgather", create<OpKind::kAllgather, true>},
    {"HorovodBroadcast", create<OpKind::kBroadcast, false>},
    {"HorovodAlltoall", create<OpKind::kAlltoall, false>},
    {"HorovodReducescatter", create<OpKind::kReducescatter, false>},
    {"HorovodGroupedReducescatter", create<OpKind::kReducescatter, true>},
    {"HorovodJoin", create<OpKind::kJoin, false>},
};

std::string add_kernel(const Entry& entry) {
  const StatusPtr status = new_status();
  // One for all types that the operation allows. For CPUs only: TensorFlow copies the tensors of
  // other devices there and back.
  KernelBuilder* builder =
      api().NewAsyncKernelBuilder(entry.operation, "CPU", entry.create, compute, destroy);
  api().RegisterKernelBuilder(entry.operation, builder, status.get());
  return is_ok(status) ? "" : std::string(entry.operation) + ": " + api().Message(status.get());
}

}  // namespace

std::string add_collective_kernels() {
  for (const Entry& entry : kEntries) {
    if (std::string problem = add_kernel(entry); !problem.empty()) return problem;
  }
  return "";
}

}  // namespace khorovod::tensorflow
