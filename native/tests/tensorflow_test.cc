// The TensorFlow adapter against a stand-in for TensorFlow: what kernels do with tensors, errors
// and callbacks, where sanitizers can see it. One rank goes through kernels, the other talks to its
// engine directly.
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "adapters/current_world.h"
#include "adapters/tensorflow_api.h"
#include "adapters/tensorflow_kernels.h"
#include "adapters/tensorflow_ops.h"
#include "tests/local_world.h"

// The stand-in's side of the types that the adapter only points to.
namespace khorovod::tensorflow {

struct Status {
  ErrorCode code = kOk;
  std::string message;
};

struct Tensor {
  DataType type = kFloat;
  std::vector<std::int64_t> shape;
  std::shared_ptr<std::vector<std::byte>> memory;
};

struct OpDefinitionBuilder {
  std::string name;
};

struct KernelBuilder {
  CreateKernel* create;
  ComputeAsync* compute_async;
  Compute* compute;
  DeleteKernel* destroy;
};

struct OpKernelConstruction {
  std::map<std::string, std::int64_t> numbers;
  std::map<std::string, std::string> texts;
  Status status;
};

struct OpKernelContext {
  std::vector<Tensor> inputs;
  std::map<int, Tensor> outputs;
  Status status;
  std::int64_t iteration = 0;
  bool forward = false;
};

}  // namespace khorovod::tensorflow

using namespace khorovod;
using namespace khorovod::testing;
namespace tf = khorovod::tensorflow;

namespace {

std::map<std::string, tf::KernelBuilder>& kernels_added() {
  static std::map<std::string, tf::KernelBuilder> all;
  return all;
}

std::size_t size_of(tf::DataType type) { return type == tf::kDouble || type == tf::kInt64 ? 8 : 4; }

tf::Tensor new_tensor(tf::DataType type, std::vector<std::int64_t> shape) {
  std::size_t bytes = size_of(type);
  for (const auto dim : shape) bytes *= static_cast<std::size_t>(dim);
  return {type, std::move(shape), std::make_shared<std::vector<std::byte>>(bytes)};
}

void put_status(tf::Status* to, tf::ErrorCode code, const char* message) { *to = {code, message}; }

void get_number(tf::OpKernelConstruction* made, const char* name, std::int64_t* value,
                tf::Status* status) {
  const auto found = made->numbers.find(name);
  if (found == made->numbers.end()) return put_status(status, tf::kInvalidArgument, name);
  *value = found->second;
}

void get_size(tf::OpKernelConstruction* made, const char* name, std::int32_t* elements,
              std::int32_t* size, tf::Status* status) {
  const auto found = made->texts.find(name);
  if (found == made->texts.end()) return put_status(status, tf::kInvalidArgument, name);
  *elements = -1;
  *size = static_cast<std::int32_t>(found->second.size());
}

void get_text(tf::OpKernelConstruction* made, const char* name, char* to, std::size_t size,
              tf::Status*) {
  made->texts.at(name).copy(to, size);
}

tf::Tensor* allocate(tf::OpKernelContext* context, int i, tf::DataType type,
                     const std::int64_t* shape, int dims, std::size_t, tf::Status*) {
  context->outputs[i] = new_tensor(type, {shape, shape + dims});
  return new tf::Tensor(context->outputs[i]);
}

tf::Tensor* forward(tf::OpKernelContext* context, const int* candidates, int, int i,
                    const std::int64_t* shape, int dims, int* forwarded, tf::Status* status) {
  tf::Tensor& input = context->inputs[static_cast<std::size_t>(candidates[0])];
  if (!context->forward) return allocate(context, i, input.type, shape, dims, 0, status);
  CHECK_EQ(input.memory.use_count(), 1);  // the adapter must not hold on to it
  *forwarded = candidates[0];
  context->outputs[i] = input;
  return new tf::Tensor(input);
}

tf::KernelBuilder* new_async_kernel(const char*, const char*, tf::CreateKernel* create,
                                    tf::ComputeAsync* compute, tf::DeleteKernel* destroy) {
  return new tf::KernelBuilder{create, compute, nullptr, destroy};
}

tf::KernelBuilder* new_kernel(const char*, const char*, tf::CreateKernel* create,
                              tf::Compute* compute, tf::DeleteKernel* destroy) {
  return new tf::KernelBuilder{create, nullptr, compute, destroy};
}

void register_kernel(const char* name, tf::KernelBuilder* builder, tf::Status*) {
  kernels_added()[name] = *builder;
  delete builder;
}

void run_done(tf::AsyncOpKernelDoneCallback* done) {
  (*reinterpret_cast<std::function<void()>*>(done))();
}

void install() {
  static const bool once = [] {
    tf::Api api;
    api.NewStatus = [] { return new tf::Status; };
    api.DeleteStatus = [](tf::Status* status) { delete status; };
    api.SetStatus = put_status;
    api.GetCode = [](const tf::Status* status) { return status->code; };
    api.Message = [](const tf::Status* status) { return status->message.c_str(); };
    api.NewAsyncKernelBuilder = new_async_kernel;
    api.NewKernelBuilder = new_kernel;
    api.RegisterKernelBuilder = register_kernel;
    api.OpKernelConstruction_GetAttrInt64 = get_number;
    api.OpKernelConstruction_GetAttrSize = get_size;
    api.OpKernelConstruction_GetAttrString = get_text;
    api.OpKernelConstruction_Failure = [](tf::OpKernelConstruction* made, tf::Status* status) {
      made->status = *status;
    };
    api.OpKernelContext_Failure = [](tf::OpKernelContext* context, tf::Status* status) {
      context->status = *status;
    };
    api.NumInputs = [](tf::OpKernelContext* c) { return static_cast<int>(c->inputs.size()); };
    api.GetInput = [](tf::OpKernelContext* context, int i, tf::Tensor** tensor, tf::Status*) {
      *tensor = new tf::Tensor(context->inputs.at(static_cast<std::size_t>(i)));
    };
    api.AllocateOutput = allocate;
    api.ForwardInputOrAllocateOutput = forward;
    api.TensorType = [](const tf::Tensor* tensor) { return tensor->type; };
    api.NumDims = [](const tf::Tensor* tensor) { return static_cast<int>(tensor->shape.size()); };
    api.Dim = [](const tf::Tensor* t, int i) { return t->shape[static_cast<std::size_t>(i)]; };
    api.TensorData = [](const tf::Tensor* tensor) -> void* { return tensor->memory->data(); };
    api.DeleteTensor = [](tf::Tensor* tensor) { delete tensor; };
    api.RunAsyncOpKernelDoneCallback = run_done;
    api.GetIterId = [](tf::OpKernelContext* context) { return context->iteration; };
    tf::set_api(api);
    CHECK_EQ(tf::add_collective_kernels(), "");
    CHECK_EQ(tf::add_query_kernels(), "");
    return true;
  }();
  CHECK(once);
}

// A kernel with its attributes, as TensorFlow holds it.
class Kernel {
 public:
  Kernel(const char* operation, std::map<std::string, std::int64_t> numbers,
         const std::string& name = "x")
      : entry_(kernels_added().at(operation)) {
    tf::OpKernelConstruction construction{
        {{"waits", 0},
         {"process_set_id", 0},
         {"reduce_op", 1},
         {"compression", 0},
         {"root_rank", 0},
         {"has_splits", 0}},
        {{"tensor_name", name}, {"prescale_factor", "1.0"}, {"postscale_factor", "0.5"}},
        {}};
    for (const auto& [key, value] : numbers) construction.numbers[key] = value;
    kernel_ = entry_.create(&construction);
    CHECK_EQ(construction.status.message, "");
  }
  ~Kernel() { entry_.destroy(kernel_); }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Returns at once; `done` is copied by whoever keeps it: what is passed on is gone by then.
  void start(tf::OpKernelContext& context, std::function<void()> done) const {
    entry_.compute_async(kernel_, &context,
                         reinterpret_cast<tf::AsyncOpKernelDoneCallback*>(&done));
    done = [] { fail(__FILE__, __LINE__, "a callback was used that is gone"); };
  }

  void run(tf::OpKernelContext& context) const {
    std::mutex mutex;
    std::condition_variable ready;
    bool is_done = false;
    start(context, [&] {
      const std::lock_guard lock(mutex);
      is_done = true;
      ready.notify_all();
    });
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return is_done; });
  }

  void query(tf::OpKernelContext& context) const { entry_.compute(kernel_, &context); }

 private:
  const tf::KernelBuilder entry_;
  void* kernel_ = nullptr;
};

tf::Tensor floats(const std::vector<float>& values) {
  tf::Tensor tensor = new_tensor(tf::kFloat, {static_cast<std::int64_t>(values.size())});
  if (!values.empty()) {
    std::memcpy(tensor.memory->data(), values.data(), values.size() * sizeof(float));
  }
  return tensor;
}

template <typename T>
std::vector<T> values_of(const tf::Tensor& tensor) {
  std::vector<T> values(tensor.memory->size() / sizeof(T));
  std::memcpy(values.data(), tensor.memory->data(), tensor.memory->size());
  return values;
}

// Rank 0 goes through kernels, rank 1 does what `other` says.
void with_peer(const std::function<void()>& through_kernels,
               const std::function<void(Engine&)>& other) {
  install();
  std::vector<World> worlds = make_shm_worlds(2);
  const auto first = std::make_shared<Engine>(std::move(worlds[0]), EngineOptions{});
  Engine second(std::move(worlds[1]), EngineOptions{});
  set_current_world({first, 0, 2});
  std::thread peer([&] { other(second); });
  through_kernels();
  peer.join();
  clear_current_world();
  first->shutdown();
}

}  // namespace

TEST(reduces_like_the_engine) {
  for (const bool forward_input : {false, true}) {
    for (const int waits : {0, 1}) {
      with_peer(
          [&] {
            const Kernel kernel("HorovodAllreduce", {{"waits", waits}});
            for (int step = 0; step < 3; ++step) {
              tf::OpKernelContext context{.inputs = {floats({1, 2, 3})},
                                          .outputs = {},
                                          .status = {},
                                          .forward = forward_input};
              kernel.run(context);
              CHECK_EQ(context.status.message, "");
              CHECK(values_of<float>(context.outputs.at(0)) == (std::vector<float>{5.5, 11, 16.5}));
            }
          },
          [](Engine& engine) {
            const std::vector<float> in = {10, 20, 30};
            std::vector<float> out;
            for (int step = 0; step < 3; ++step) {
              const OperationRef operation = allreduce_operation("allreduce.x", in, out);
              operation->request.postscale = 0.5;
              CHECK(engine.submit(operation, true).ok());
              CHECK(wait(engine, operation).ok());
            }
          });
    }
  }
}

TEST(many_are_in_flight) {
  constexpr int kCount = 200;
  with_peer(
      [] {
        std::deque<Kernel> kernels;
        std::deque<tf::OpKernelContext> contexts;
        std::mutex mutex;
        std::condition_variable ready;
        int done = 0;
        for (int i = 0; i < kCount; ++i) {
          kernels.emplace_back("HorovodAllreduce", std::map<std::string, std::int64_t>{},
                               std::to_string(i));
          contexts.push_back({.inputs = {floats({float(i)})}, .outputs = {}, .status = {}});
          kernels.back().start(contexts.back(), [&] {
            const std::lock_guard lock(mutex);
            if (++done == kCount) ready.notify_all();
          });
        }
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return done == kCount; });
        for (int i = 0; i < kCount; ++i) {
          const auto& context = contexts[static_cast<std::size_t>(i)];
          CHECK(values_of<float>(context.outputs.at(0)) == std::vector<float>{float(i)});
        }
      },
      [](Engine& engine) {
        std::vector<std::vector<float>> in(kCount);
        std::vector<std::vector<float>> out(kCount);
        std::vector<OperationRef> operations;
        for (int i = kCount - 1; i >= 0; --i) {
          const auto at = static_cast<std::size_t>(i);
          in[at] = {float(i)};
          operations.push_back(
              allreduce_operation("allreduce." + std::to_string(i), in[at], out[at]));
          operations.back()->request.postscale = 0.5;
          CHECK(engine.submit(operations.back(), false).ok());
        }
        for (const OperationRef& operation : operations) CHECK(wait(engine, operation).ok());
      });
}

TEST(outputs_get_their_sizes_late) {
  with_peer(
      [] {
        const Kernel gather("HorovodAllgather", {});
        tf::OpKernelContext context{.inputs = {floats({1, 2})}, .outputs = {}, .status = {}};
        gather.run(context);
        CHECK(values_of<float>(context.outputs.at(0)) == (std::vector<float>{1, 2, 7, 8, 9}));
        const Kernel nothing("HorovodAllgather", {}, "empty");
        tf::OpKernelContext empty{.inputs = {floats({})}, .outputs = {}, .status = {}};
        nothing.run(empty);
        CHECK(empty.outputs.at(0).shape == std::vector<std::int64_t>{0});
        const Kernel exchange("HorovodAlltoall", {});
        tf::OpKernelContext rows{
            .inputs = {floats({1, 2}), new_tensor(tf::kInt32, {0})}, .outputs = {}, .status = {}};
        exchange.run(rows);
        CHECK(values_of<float>(rows.outputs.at(0)) == (std::vector<float>{1, 5}));
        CHECK(values_of<std::int32_t>(rows.outputs.at(1)) == (std::vector<std::int32_t>{1, 1}));
      },
      [](Engine& engine) {
        std::vector<float> out;
        const std::vector<float> three = {7, 8, 9};
        const std::vector<float> none;
        const std::vector<float> two = {5, 6};
        const OperationRef gather = sized_operation(OpKind::kAllgather, "allgather.x", three, out);
        CHECK(engine.submit(gather, true).ok() && wait(engine, gather).ok());
        const OperationRef empty =
            sized_operation(OpKind::kAllgather, "allgather.empty", none, out);
        CHECK(engine.submit(empty, true).ok() && wait(engine, empty).ok());
        const OperationRef exchange = sized_operation(OpKind::kAlltoall, "alltoall.x", two, out);
        exchange->request.numbers = {1, 1};
        CHECK(engine.submit(exchange, true).ok() && wait(engine, exchange).ok());
      });
}

TEST(errors_have_their_class) {
  with_peer(
      [] {
        const Kernel unknown("HorovodAllreduce", {{"process_set_id", 9}});
        tf::OpKernelContext context{.inputs = {floats({1})}, .outputs = {}, .status = {}};
        unknown.run(context);
        CHECK_EQ(context.status.code, tf::kInvalidArgument);
        const Kernel negative("HorovodAllreduce", {{"process_set_id", -1}});
        negative.run(context);
        CHECK_EQ(context.status.code, tf::kInvalidArgument);
        const Kernel maximum("HorovodReducescatter", {{"reduce_op", 4}});
        maximum.run(context);
        CHECK_EQ(context.status.code, tf::kAborted);
        const Kernel other("HorovodAllreduce", {}, "odd");
        other.run(context);
        CHECK_EQ(context.status.code, tf::kFailedPrecondition);
        const Kernel lost("HorovodAllreduce", {}, "alone");
        lost.run(context);
        CHECK_EQ(context.status.code, tf::kUnknown);
      },
      [](Engine& engine) {
        const std::vector<float> in = {1, 2};
        std::vector<float> out;
        const OperationRef operation = allreduce_operation("allreduce.odd", in, out);
        CHECK(engine.submit(operation, true).ok());
        CHECK(wait(engine, operation).code == Code::kMismatch);
        engine.shutdown("it had enough");
      });
}

TEST(iterations_of_a_loop_have_names_of_their_own) {
  with_peer(
      [] {
        const Kernel kernel("HorovodAllreduce", {});
        std::deque<tf::OpKernelContext> contexts;
        std::mutex mutex;
        std::condition_variable ready;
        int done = 0;
        for (const std::int64_t i : {1, 0, 2}) {
          contexts.push_back(
              {.inputs = {floats({float(i)})}, .outputs = {}, .status = {}, .iteration = i});
          kernel.start(contexts.back(), [&] {
            const std::lock_guard lock(mutex);
            if (++done == 3) ready.notify_all();
          });
        }
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return done == 3; });
        for (const auto& context : contexts) {
          const auto i = static_cast<float>(context.iteration);
          CHECK(values_of<float>(context.outputs.at(0)) == std::vector<float>{i});
        }
      },
      [](Engine& engine) {
        for (const char* name : {"allreduce.x", "allreduce.x#1", "allreduce.x#2"}) {
          const float value = name[11] == 0 ? 0.0F : float(name[12] - '0');
          const std::vector<float> in = {value};
          std::vector<float> out;
          const OperationRef operation = allreduce_operation(name, in, out);
          operation->request.postscale = 0.5;
          CHECK(engine.submit(operation, true).ok() && wait(engine, operation).ok());
        }
      });
}

TEST(without_a_world) {
  install();
  clear_current_world();
  const Kernel kernel("HorovodAllreduce", {});
  tf::OpKernelContext context{.inputs = {floats({1})}, .outputs = {}, .status = {}};
  kernel.run(context);
  CHECK_EQ(context.status.code, tf::kFailedPrecondition);
  const Kernel rank("HorovodRank", {});
  rank.query(context);
  CHECK_EQ(context.status.code, tf::kFailedPrecondition);
  const Kernel included("HorovodProcessSetIncluded", {});
  tf::OpKernelContext answer;
  included.query(answer);
  CHECK(values_of<std::int32_t>(answer.outputs.at(0)) == std::vector<std::int32_t>{-1});
}

TEST_MAIN()
