#include "engine/trace.h"

#include <limits>

namespace khorovod {

namespace {

enum class Tag : std::uint8_t { kOperation, kReady, kCycle };
constexpr int kTagCount = 3;

// Nobody's names are longer, nobody's arrays have more dimensions: beyond this it is garbage.
constexpr std::size_t kMaxText = 1 << 20;
constexpr std::size_t kMaxDimensions = 1024;

void write_signed(Writer& out, std::int64_t value) {
  out.varint(static_cast<std::uint64_t>(value));
}

template <typename Int>
bool read_natural(Reader& in, Int& value) {
  const std::uint64_t read = in.varint();
  value = static_cast<Int>(read);
  return in.ok() && read <= static_cast<std::uint64_t>(std::numeric_limits<Int>::max());
}

bool read_text(Reader& in, std::string& text) {
  const Bytes bytes = in.bytes();
  if (!in.ok() || bytes.size() > kMaxText) return false;
  text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return true;
}

bool read(Reader& in, OperationTrace& trace) {
  for (auto* text : {&trace.name, &trace.operation, &trace.activity, &trace.dtype}) {
    if (!read_text(in, *text)) return false;
  }
  const std::size_t dimensions = in.count();
  if (!in.ok() || dimensions > kMaxDimensions) return false;
  trace.shape.resize(dimensions);
  for (auto& dimension : trace.shape) {
    if (!read_natural(in, dimension)) return false;
  }
  for (auto* at : {&trace.submitted, &trace.planned, &trace.started, &trace.done}) {
    if (!read_natural(in, *at)) return false;
  }
  const std::uint8_t failed = in.u8();
  trace.failed = failed != 0;
  return in.ok() && failed <= 1;
}

bool read(Reader& in, ReadyTrace& trace) {
  if (!read_text(in, trace.name) || !read_text(in, trace.operation)) return false;
  trace.ranks.resize(in.count(2));
  for (auto& [rank, at] : trace.ranks) {
    if (!read_natural(in, rank) || !read_natural(in, at)) return false;
  }
  return in.ok();
}

bool read(Reader& in, CycleTrace& trace) { return read_natural(in, trace.at); }

}  // namespace

void write_trace(Writer& out, const OperationTrace& trace) {
  out.u8(static_cast<std::uint8_t>(Tag::kOperation));
  for (const auto* text : {&trace.name, &trace.operation, &trace.activity, &trace.dtype}) {
    out.string(*text);
  }
  out.varint(trace.shape.size());
  for (const auto dimension : trace.shape) write_signed(out, dimension);
  for (const auto at : {trace.submitted, trace.planned, trace.started, trace.done}) {
    write_signed(out, at);
  }
  out.u8(trace.failed ? 1 : 0);
}

void write_trace(Writer& out, const ReadyTrace& trace) {
  out.u8(static_cast<std::uint8_t>(Tag::kReady));
  out.string(trace.name);
  out.string(trace.operation);
  out.varint(trace.ranks.size());
  for (const auto& [rank, at] : trace.ranks) {
    write_signed(out, rank);
    write_signed(out, at);
  }
}

void write_trace(Writer& out, const CycleTrace& trace) {
  out.u8(static_cast<std::uint8_t>(Tag::kCycle));
  write_signed(out, trace.at);
}

void write_trace(Writer& out, const Trace& trace) {
  std::visit([&out](const auto& one) { write_trace(out, one); }, trace);
}

bool read_trace(Reader& in, Trace& trace) {
  const auto tag = in.enumerator<Tag>(kTagCount);
  if (!in.ok()) return false;
  switch (tag) {
    case Tag::kOperation:
      return read(in, trace.emplace<OperationTrace>());
    case Tag::kReady:
      return read(in, trace.emplace<ReadyTrace>());
    case Tag::kCycle:
      return read(in, trace.emplace<CycleTrace>());
  }
  return false;
}

}  // namespace khorovod
