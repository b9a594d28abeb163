// Targets that act on what they read: a rank's engine, and the data plane's connections.
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstring>
#include <deque>

#include "engine/engine.h"
#include "fuzz/targets.h"
#include "planes/tcp_plane.h"
#include "tests/check.h"

namespace khorovod::fuzz {

namespace {

constexpr std::size_t kMostResult = std::size_t{1} << 20;  // no more memory than that

// Hands an engine the messages of an input, as if rank 0 had sent them, and then breaks.
class ScriptedLink : public Link {
 public:
  explicit ScriptedLink(std::deque<Input> messages) : messages_(std::move(messages)) {}

  const char* name() const override { return "scripted"; }
  void send(int, Bytes) override {}
  bool receive(const Receiver& receiver) override {
    if (!broken_.ok()) return false;
    if (messages_.empty()) {
      broken_ = Status::error(Code::kInternal, "the script is over");
      return false;
    }
    const Input message = std::move(messages_.front());
    messages_.pop_front();
    if (!receiver(0, message)) broken_ = Status::error(Code::kInternal, "it makes no sense");
    return true;
  }
  bool flush() override { return false; }
  bool backlog() const override { return false; }
  Status failure() const override { return broken_; }
  void abort(const Status& reason) override {
    if (broken_.ok()) broken_ = reason;
  }
  void leave(std::uint64_t, const std::string&) override {}
  int departed() const override { return -1; }
  bool has_left(int) const override { return false; }
  std::string last_words(int) const override { return ""; }
  std::uint64_t left_after(int) const override { return 0; }
  bool decisions_may_come(std::uint64_t) const override { return false; }
  std::uint32_t mark() const override { return 0; }
  bool news_since(std::uint32_t) const override { return true; }
  Wakeup sleep(std::uint32_t, Wanted, std::vector<pollfd>&, Nanoseconds) override {
    return Wakeup::kNews;
  }
  bool park(std::uint32_t, Wanted) override { return true; }
  void wanted_fds(std::vector<pollfd>&) const override {}
  void wake(int) override {}
  void wake_self() override {}

 private:
  std::deque<Input> messages_;
  Status broken_;
};

// Reads all inputs and writes all outputs of a work, so that sanitizers see whether they are there.
class TouchingPlane : public DataPlane {
 public:
  const char* name() const override { return "touching"; }
  void submit(Work work) override { works_.push_back(std::move(work)); }
  bool advance(const Done& done) override {
    if (works_.empty()) return false;
    const Work work = std::move(works_.front());
    works_.pop_front();
    CHECK(work.longest > 0 && work.members->size() > 1);
    const std::size_t element = dtype_size(work.dtype);
    for (const auto* streams : {&work.streams, &work.receive}) {
      for (const Stream& stream : *streams) {
        CHECK(stream.count <= work.longest);
        for (const Segment& segment : stream.segments) {
          // Everybody gets the result of a reduction.
          CHECK(work.movement != Movement::kAllreduce || (segment.in && segment.out));
          touch(segment, element);
        }
      }
    }
    const bool one_by_one =
        work.movement == Movement::kAllreduce || work.movement == Movement::kBroadcast;
    const std::size_t parts = one_by_one ? work.streams.front().segments.size() : 1;
    for (std::size_t i = 0; i < parts; ++i) done(work.number, one_by_one ? i : kWhole);
    return true;
  }
  void abort() override { works_.clear(); }

 private:
  static void touch(const Segment& segment, std::size_t element) {
    const std::size_t bytes = segment.count * element;
    unsigned sum = 0;
    for (std::size_t i = 0; segment.in != nullptr && i < bytes; ++i) {
      sum += static_cast<unsigned>(segment.in[i]);
    }
    if (segment.out != nullptr) std::memset(segment.out, static_cast<int>(sum & 1), bytes);
  }

  std::deque<Work> works_;
};

// Memory of an operation that nobody but ASan looks at.
struct Submission {
  OperationRef operation = std::make_shared<Operation>();
  std::vector<std::vector<std::byte>> memory;

  Submission(OpKind kind, const std::string& name, std::vector<TensorSpec> tensors = {},
             std::vector<std::int64_t> numbers = {}) {
    Request& request = operation->request;
    request.kind = kind;
    request.name = name;
    request.grouped = tensors.size() > 1;
    request.tensors = std::move(tensors);
    request.numbers = std::move(numbers);
    const bool sized =
        kind == OpKind::kAllgather || kind == OpKind::kAlltoall || kind == OpKind::kReducescatter;
    memory.resize(2 * request.tensors.size());
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      memory[2 * i].resize(request.tensors[i].bytes());
      if (!sized) memory[2 * i + 1].resize(request.tensors[i].bytes());
      operation->parts.push_back(
          {memory[2 * i].data(), sized ? nullptr : memory[2 * i + 1].data()});
    }
    if (!sized) return;
    operation->allocate = [this](std::size_t part, std::size_t bytes) -> std::byte* {
      if (bytes > kMostResult) return nullptr;
      memory[2 * part + 1].resize(bytes);
      return memory[2 * part + 1].data();
    };
  }
};

// A joined rank makes memory for whatever the others reduce: that much is given to rank 0.
bool asks_for_too_much(Bytes message) {
  Reader in(message);
  Decisions decisions;
  if (!read_decisions(in, decisions)) return false;
  for (const Plan& plan : decisions.plans) {
    for (const PlanEntry& entry : plan.entries) {
      if (entry.request.has_value() && entry.request->bytes() > kMostResult) return true;
    }
  }
  return false;
}

std::deque<std::unique_ptr<Submission>> submissions(bool joins) {
  constexpr DType f32 = DType::kFloat32;
  constexpr DType i64 = DType::kInt64;
  std::deque<std::unique_ptr<Submission>> all;
  const auto add = [&](auto... arguments) -> Request& {
    all.push_back(std::make_unique<Submission>(arguments...));
    return all.back()->operation->request;
  };
  using Tensors = std::vector<TensorSpec>;
  using Numbers = std::vector<std::int64_t>;
  add(OpKind::kAllreduce, "a", Tensors{{f32, {7}}});
  add(OpKind::kAllreduce, "b", Tensors{{f32, {1000}}}).compression = Compression::kFloat16;
  add(OpKind::kAllreduce, "c", Tensors{{f32, {3}}, {i64, {5, 2}}});
  add(OpKind::kAllreduce, "d", Tensors{{f32, {9}}}).reduce = ReduceOp::kAdasum;
  add(OpKind::kBroadcast, "e", Tensors{{i64, {600}}}).root = 2;
  add(OpKind::kAllgather, "f", Tensors{{f32, {3, 2}}});
  add(OpKind::kAllgather, "g", Tensors{{f32, {3, 2}}, {i64, {0, 4}}});
  add(OpKind::kAlltoall, "h", Tensors{{f32, {6, 5}}}, Numbers{1, 0, 2, 3});
  add(OpKind::kReducescatter, "i", Tensors{{f32, {9, 3}}});
  add(OpKind::kBarrier, "j");
  add(OpKind::kAllgather, "n", Tensors{{f32, {4}}}).handed = Handed::kOnCpu;
  all.back()->operation->parts.clear();
  add(OpKind::kAlltoall, "o", Tensors{{f32, {6}}}, Numbers{1, 0, 2, 3}).handed = Handed::kOnGpu;
  all.back()->operation->parts.clear();
  if (joins) {
    add(OpKind::kJoin, "k", Tensors{}, Numbers{3});
  } else {
    add(OpKind::kAddProcessSets, "l", Tensors{}, Numbers{2, 0, 1});
    add(OpKind::kRemoveProcessSet, "m", Tensors{}, Numbers{1});
  }
  return all;
}

}  // namespace

// Rank 1 of four has one operation of every kind pending; rank 0 says anything. The first byte says
// whether the rank has joined.
void run_engine(Bytes input) {
  if (input.empty()) return;
  const bool joins = (static_cast<unsigned>(input[0]) & 1) != 0;
  std::deque<Input> messages;
  bool too_much = false;
  for_each_message(input.subspan(1), [&](int, Bytes message) {
    too_much |= joins && asks_for_too_much(message);
    messages.emplace_back(message.begin(), message.end());
  });
  if (too_much) return;
  auto pending = submissions(joins);
  World world;
  world.rank = 1;
  world.size = kRanks;
  world.wake = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  world.link = std::make_unique<ScriptedLink>(std::move(messages));
  world.plane = std::make_unique<TouchingPlane>();
  Engine engine(std::move(world), {});
  engine.handing().open();
  for (const auto& one : pending) CHECK(engine.submit(one->operation, true).ok());
  for (const auto& one : pending) {
    while (engine.wait(*one->operation) != WaitResult::kDone) {
    }
  }
}

// Rank 0 of two has one work of every kind under way; the bytes are what rank 1 sends.
void run_plane(Bytes input) {
  int pair[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  UniqueFd theirs(pair[1]);
  std::vector<UniqueFd> sockets(2);
  sockets[1] = UniqueFd(pair[0]);
  TcpPlane plane(0, 2, std::move(sockets), {"rank 0", "rank 1"}, 128);
  const MembersRef members = all_ranks(2);
  std::vector<std::vector<std::byte>> memory;
  const auto fresh = [&](std::size_t bytes) { return memory.emplace_back(bytes).data(); };
  std::uint64_t number = 0;
  for (const Movement movement : {Movement::kAllreduce, Movement::kBroadcast, Movement::kAllgather,
                                  Movement::kAlltoall, Movement::kReducescatter}) {
    Work work;
    work.number = work.plan = ++number;
    work.movement = movement;
    work.members = members;
    work.root = 1;
    const bool one = movement == Movement::kAllreduce || movement == Movement::kBroadcast;
    work.streams.resize(one ? 1 : 2);
    for (Stream& stream : work.streams) stream.add(fresh(4 * 90), fresh(4 * 90), 90);
    if (movement == Movement::kAlltoall) {
      work.receive.resize(2);
      for (Stream& stream : work.receive) stream.add(nullptr, fresh(4 * 90), 90);
    }
    work.longest = 90;
    plane.submit(std::move(work));
  }
  std::vector<std::byte> drain(1 << 16);
  const auto done = [](std::uint64_t, std::size_t) {};
  for (bool moved = true; moved && plane.failure().ok();) {
    moved = plane.advance(done);
    while (::recv(theirs.get(), drain.data(), drain.size(), MSG_DONTWAIT) > 0) moved = true;
    if (input.empty()) continue;
    const ssize_t n = ::send(theirs.get(), input.data(), std::min<std::size_t>(input.size(), 100),
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) input = input.subspan(static_cast<std::size_t>(n));
    moved |= n > 0;
  }
}

}  // namespace khorovod::fuzz
