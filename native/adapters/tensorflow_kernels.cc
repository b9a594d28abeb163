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

#include "adapters/call.h"
#include "adapters/current_world.h"
#include "adapters/tensorflow_done.h"
#include "adapters/tensorflow_handles.h"
#include "adapters/tensorflow_tensors.h"

namespace khorovod::tensorflow {

namespace {

// So many names are used in turn for the iterations of a loop: more than TensorFlow starts at once,
// and not so many as to be new every time.
constexpr std::int64_t kLoopNames = 256;

// What the attributes of an operation say.
struct Kernel {
  Call call;
  std::int64_t waits = 0;
  std::int64_t has_splits = 0;
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
  auto kernel = std::make_unique<Kernel>();
  Call& call = kernel->call;
  call.kind = kKind;
  call.grouped = kGrouped;
  Attributes attributes(construction);
  kernel->waits = attributes.number("waits");
  if constexpr (kKind != OpKind::kJoin) {
    call.name = attributes.text("tensor_name");
    call.set = attributes.number("process_set_id");
  }
  if constexpr (kKind == OpKind::kAllreduce || kKind == OpKind::kReducescatter) {
    call.reduce = attributes.number("reduce_op");
    call.compression = attributes.number("compression");
    call.prescale = attributes.factor("prescale_factor");
    call.postscale = attributes.factor("postscale_factor");
  }
  if constexpr (kKind == OpKind::kBroadcast) call.root = attributes.number("root_rank");
  if constexpr (kKind == OpKind::kAlltoall) kernel->has_splits = attributes.number("has_splits");
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// ---------------------------------------------------------------------------------------------------
// From an operation's inputs to a request

// Iterations of a loop may overlap, and then each needs a name of its own.
void tell_iterations_apart(Request& request, const Call& call, OpKernelContext* context) {
  if (call.name.empty() || api().GetIterId == nullptr) return;
  const std::int64_t iteration = api().GetIterId(context);
  if (iteration > 0) request.name += "#" + std::to_string(iteration % kLoopNames);
}

khorovod::Status add_outputs(const Call& call, OpKernelContext* context, int rank,
                             const OperationRef& operation) {
  khorovod::Status status;
  for (std::size_t i = 0; i < operation->parts.size() && status.ok(); ++i) {
    if (call.kind == OpKind::kAllreduce || call.kind == OpKind::kBroadcast) {
      status = add_like_input(context, i, *operation);
    } else if (call.kind == OpKind::kReducescatter) {
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
  const Call& call = kernel.call;
  khorovod::Status status = begin(call, engine, *operation);
  const int inputs = call.kind == OpKind::kAlltoall ? 1 : api().NumInputs(context);
  for (int i = 0; i < inputs && status.ok(); ++i) status = add_input(context, i, *operation);
  std::optional<std::vector<std::int64_t>> splits;
  if (status.ok() && kernel.has_splits != 0) status = read_splits(context, splits.emplace());
  if (status.ok()) status = check(call, splits, *operation);
  if (status.ok()) status = add_outputs(call, context, engine.rank(), operation);
  if (!status.ok()) return status;
  put_name_in(operation->request, call, engine);
  tell_iterations_apart(operation->request, call, context);
  return {};
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

void conclude(OpKernelContext* context, Engine& engine, Operation& operation,
              khorovod::Status status) {
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
    conclude(context, engine, *operation, run_here(engine, operation));
    return api().RunAsyncOpKernelDoneCallback(callback);
  }
  // Whoever runs it has a reference to the operation, and the engine lives until all has run.
  operation->on_done = [context, &engine, of = operation.get(), done](const khorovod::Status&) {
    conclude(context, engine, *of, of->status);
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
