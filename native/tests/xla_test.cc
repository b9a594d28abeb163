// The handler for XLA against a stand-in for XLA: what it reads of a call, how results and errors
// get back, where sanitizers can see it. One rank goes through the handler, the other talks to its
// engine directly.
#include "adapters/xla.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "adapters/current_world.h"
#include "adapters/xla_frame.h"
#include "tests/local_world.h"

// The stand-in's side of the types that the handler only points to.
namespace khorovod::xla {

struct Error {
  int code;
  std::string message;
};

struct Future {
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false;
  std::unique_ptr<Error> error{};

  void finish(Error* with) {
    const std::lock_guard lock(mutex);
    done = true;
    error.reset(with);
    ready.notify_all();
  }
};

}  // namespace khorovod::xla

using namespace khorovod;
using namespace khorovod::testing;

namespace {

xla::Api new_api(bool futures) {
  xla::Api api{};
  api.struct_size = futures ? sizeof api : offsetof(xla::Api, type_register);
  api.version = {sizeof api.version, nullptr, 0, 2};
  api.error_create = [](xla::ErrorCreateArgs* args) {
    return new xla::Error{args->code, args->message};
  };
  api.future_create = [](xla::FutureArgs* args) -> xla::Error* {
    args->future = new xla::Future;
    return nullptr;
  };
  api.future_set_available = [](xla::FutureArgs* args) -> xla::Error* {
    args->future->finish(nullptr);
    return nullptr;
  };
  api.future_set_error = [](xla::FutureErrorArgs* args) -> xla::Error* {
    args->future->finish(args->error);
    return nullptr;
  };
  return api;
}

// A call of a compiled program: its memory, and what describes it.
class CompiledCall {
 public:
  explicit CompiledCall(const std::string& operation, bool futures = true)
      : api_(new_api(futures)), futures_(futures) {
    text("operation", operation);
  }

  void text(const std::string& name, const std::string& value) {
    texts_.push_back(value);
    spans_.push_back({texts_.back().data(), texts_.back().size()});
    attribute(name, xla::kStringAttribute, &spans_.back());
  }
  void number(const std::string& name, std::int64_t value) {
    numbers_.push_back(value);
    scalars_.push_back({xla::kS64, &numbers_.back()});
    attribute(name, xla::kScalarAttribute, &scalars_.back());
  }
  void factor(const std::string& name, double value) {
    factors_.push_back(value);
    scalars_.push_back({xla::kF64, &factors_.back()});
    attribute(name, xla::kScalarAttribute, &scalars_.back());
  }
  void argument(const std::vector<float>& values) { add(arguments_, values); }
  std::vector<float>& result(std::size_t size) { return add(results_, std::vector<float>(size)); }

  // The error, or null. What XLA described the call by is gone before it is done.
  std::unique_ptr<xla::Error> run() {
    xla::Future* future = nullptr;
    std::unique_ptr<xla::Error> error = start(future);
    if (future == nullptr) return error;
    CHECK(error == nullptr);
    const std::unique_ptr<xla::Future> owner(future);
    std::unique_lock lock(future->mutex);
    future->ready.wait(lock, [&] { return future->done; });
    return std::move(future->error);
  }

 private:
  struct Buffers {
    std::deque<std::vector<float>> memory;
    std::deque<std::int64_t> dims;
    std::deque<xla::Buffer> buffers;
    std::vector<void*> items;
    std::vector<int> kinds;

    xla::Buffers frame() {
      return {sizeof(xla::Buffers), nullptr, static_cast<std::int64_t>(items.size()), kinds.data(),
              items.data()};
    }
  };

  static std::vector<float>& add(Buffers& to, const std::vector<float>& values) {
    to.memory.push_back(values);
    to.dims.push_back(static_cast<std::int64_t>(values.size()));
    to.buffers.push_back(
        {sizeof(xla::Buffer), nullptr, xla::kF32, to.memory.back().data(), 1, &to.dims.back()});
    to.items.push_back(&to.buffers.back());
    to.kinds.push_back(xla::kBufferArgument);
    return to.memory.back();
  }

  void attribute(const std::string& name, int kind, void* value) {
    texts_.push_back(name);
    spans_.push_back({texts_.back().data(), texts_.back().size()});
    names_.push_back(&spans_.back());
    kinds_.push_back(kind);
    values_.push_back(value);
  }

  std::unique_ptr<xla::Error> start(xla::Future*& future) {
    // On the heap, and as long as this version of XLA makes it: sanitizers see who reads more.
    const std::size_t size = futures_ ? sizeof(xla::CallFrame) : offsetof(xla::CallFrame, future);
    const auto memory = std::make_unique<std::byte[]>(size);
    auto* frame = new (memory.get()) xla::CallFrame;
    static_assert(std::is_trivially_destructible_v<xla::CallFrame>);
    frame->struct_size = size;
    frame->extension = nullptr;
    frame->api = &api_;
    frame->arguments = arguments_.frame();
    frame->results = results_.frame();
    frame->attributes = {sizeof frame->attributes,
                         nullptr,
                         static_cast<std::int64_t>(names_.size()),
                         kinds_.data(),
                         names_.data(),
                         values_.data()};
    if (futures_) frame->future = nullptr;
    std::unique_ptr<xla::Error> error(xla::handle(frame));
    if (futures_) future = frame->future;
    return error;
  }

  xla::Api api_;
  bool futures_;
  std::deque<std::string> texts_;
  std::deque<xla::Span> spans_;
  std::deque<std::int64_t> numbers_;
  std::deque<double> factors_;
  std::deque<xla::Scalar> scalars_;
  std::vector<xla::Span*> names_;
  std::vector<int> kinds_;
  std::vector<void*> values_;
  Buffers arguments_;
  Buffers results_;
};

// Rank 0 is called by XLA, rank 1 does what `other` says.
void with_peer(const std::function<void()>& called, const std::function<void(Engine&)>& other) {
  std::vector<World> worlds = make_shm_worlds(2);
  const auto first = std::make_shared<Engine>(std::move(worlds[0]), EngineOptions{});
  Engine second(std::move(worlds[1]), EngineOptions{});
  set_current_world({first, 0, 2});
  std::thread peer([&] { other(second); });
  called();
  peer.join();
  clear_current_world();
  first->shutdown();
}

void check_error(const std::unique_ptr<xla::Error>& error, int code, const std::string& part) {
  CHECK(error != nullptr);
  CHECK_EQ(error->code, code);
  if (error->message.find(part) == std::string::npos) fail(__FILE__, __LINE__, error->message);
}

}  // namespace

TEST(reduces_like_the_engine) {
  for (const bool futures : {true, false}) {
    with_peer(
        [&] {
          for (int step = 0; step < 3; ++step) {
            CompiledCall call("grouped_allreduce", futures);
            call.text("name", "x");
            call.number("reduce_op", 1);
            call.number("links", 1);
            call.factor("postscale", 0.5);
            call.argument({1, 2, 3});
            call.argument({0});  // a link: not a tensor
            const std::vector<float>& out = call.result(3);
            call.result(1);
            CHECK(call.run() == nullptr);
            CHECK(out == (std::vector<float>{5.5, 11, 16.5}));
          }
        },
        [](Engine& engine) {
          const std::vector<float> in = {10, 20, 30};
          std::vector<float> out;
          for (int step = 0; step < 3; ++step) {
            const OperationRef operation = allreduce_operation("grouped_allreduce.x", in, out);
            operation->request.grouped = true;
            operation->request.postscale = 0.5;
            CHECK(engine.submit(operation, true).ok());
            CHECK(wait(engine, operation).ok());
          }
        });
  }
}

TEST(rows_that_do_not_fit_are_an_error) {
  with_peer(
      [] {
        for (const std::size_t room : {5, 4, 6, 0}) {
          CompiledCall call("allgather");
          call.text("name", "g" + std::to_string(room));
          call.argument({1, 2});
          const std::vector<float>& out = call.result(room);
          const std::unique_ptr<xla::Error> error = call.run();
          if (room == 5) {
            CHECK(error == nullptr);
            CHECK(out == (std::vector<float>{1, 2, 7, 8, 9}));
          } else {
            check_error(error, xla::kInvalidArgument, "here are 5");
          }
        }
      },
      [](Engine& engine) {
        const std::vector<float> in = {7, 8, 9};
        for (const int room : {5, 4, 6, 0}) {
          std::vector<float> out;
          const OperationRef operation =
              sized_operation(OpKind::kAllgather, "allgather.g" + std::to_string(room), in, out);
          CHECK(engine.submit(operation, true).ok());
          CHECK(wait(engine, operation).ok());
        }
      });
}

TEST(disagreement_has_its_class) {
  with_peer(
      [] {
        CompiledCall call("allreduce");
        call.text("name", "x");
        call.argument({1, 2, 3});
        call.result(3);
        check_error(call.run(), xla::kFailedPrecondition, "shapes");
      },
      [](Engine& engine) {
        const std::vector<float> in = {1, 2};
        std::vector<float> out;
        const OperationRef operation = allreduce_operation("allreduce.x", in, out);
        CHECK(engine.submit(operation, true).ok());
        CHECK(!wait(engine, operation).ok());
      });
}

TEST(what_one_rank_sees_alone) {
  with_peer(
      [] {
        CompiledCall unknown("allreduces");
        check_error(unknown.run(), xla::kInvalidArgument, "allreduces");
        CompiledCall kind("allreduce");
        kind.text("process_set", "zero");
        check_error(kind.run(), xla::kInvalidArgument, "process_set");
        CompiledCall type("allreduce");
        type.factor("reduce_op", 1.0);
        check_error(type.run(), xla::kInvalidArgument, "reduce_op");
        CompiledCall set("allreduce");
        set.number("process_set", 7);
        check_error(set.run(), xla::kInvalidArgument, "7");
        CompiledCall room("allreduce");
        room.argument({1, 2});
        room.result(3);
        check_error(room.run(), xla::kInvalidArgument, "bytes");
        CompiledCall nothing("allreduce");
        nothing.argument({1, 2});
        check_error(nothing.run(), xla::kInvalidArgument, "results");
        CompiledCall size("size");
        size.result(1);  // of floats
        check_error(size.run(), xla::kInvalidArgument, "int32");
      },
      [](Engine&) {});
}

TEST(without_a_world) {
  CompiledCall call("allreduce");
  call.argument({1});
  call.result(1);
  check_error(call.run(), xla::kFailedPrecondition, "hvd.init()");
}

// Before the first call XLA asks which version of its interface is known.
TEST(tells_its_version) {
  for (const bool told : {true, false}) {
    const xla::Api api = new_api(true);
    xla::Metadata metadata{};
    xla::MetadataExtension asked{{sizeof asked, xla::kMetadataExtension, nullptr}, &metadata};
    xla::CallFrame frame{};
    frame.struct_size = sizeof frame;
    frame.extension = &asked.base;
    frame.api = told ? &api : nullptr;
    CHECK(xla::handle(&frame) == nullptr);
    CHECK_EQ(metadata.version.minor, told ? 2 : 1);
  }
}

TEST_MAIN()
