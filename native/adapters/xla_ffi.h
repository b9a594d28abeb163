// XLA's interface for calls to code outside of it (its FFI), as far as it is used here. The
// declarations are our own, so nothing of XLA is needed to compile. A structure begins with its
// size in the version that made it: fields after that are not there, see has().
#pragma once

#include <cstddef>
#include <cstdint>

#include "adapters/error_code.h"

namespace khorovod::xla {

// Types that are only pointed to.
struct Error;
struct Context;
struct Future;

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
inline constexpr int kMetadataExtension = 1;

struct Version {
  std::size_t struct_size;
  Extension* extension;
  int major;
  int minor;
};

// XLA asks for it before it calls for work: which version of the interface this code knows.
struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Span {
  const char* data;
  std::size_t size;
};

// Element types; those that are used.
using DataType = int;
inline constexpr DataType kPred = 1, kS8 = 2, kS16 = 3, kS32 = 4, kS64 = 5, kU8 = 6, kU16 = 7,
                          kF16 = 10, kF32 = 11, kF64 = 12, kBf16 = 16;

struct Buffer {
  std::size_t struct_size;
  Extension* extension;
  DataType type;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};
inline constexpr int kBufferArgument = 1;

struct Buffers {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* kinds;
  void** items;
};

struct Scalar {
  DataType type;
  void* value;
};
inline constexpr int kScalarAttribute = 3, kStringAttribute = 4;

struct Attributes {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* kinds;
  Span** names;  // in their order
  void** values;
};

struct CallFrame;
using Handler = Error*(CallFrame*);

struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extension;
  const char* message;
  int code;
};
struct ErrorMessageArgs {
  std::size_t struct_size;
  Extension* extension;
  Error* error;
  const char* message;  // the answer
};
struct ErrorArgs {
  std::size_t struct_size;
  Extension* extension;
  Error* error;
};
struct RegisterArgs {
  std::size_t struct_size;
  Extension* extension;
  Span name;
  Span platform;
  Handler* instantiate;
  Handler* prepare;
  Handler* initialize;
  Handler* execute;
  std::uint32_t traits;
};
struct FutureArgs {
  std::size_t struct_size;
  Extension* extension;
  Future* future;
};
struct FutureErrorArgs {
  std::size_t struct_size;
  Extension* extension;
  Future* future;
  Error* error;
};

struct Api {
  std::size_t struct_size;
  Extension* extension;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void (*error_message)(ErrorMessageArgs*);
  void (*error_destroy)(ErrorArgs*);
  Error* (*handler_register)(RegisterArgs*);
  void* stream_get;
  void* type_register;
  void* execution_context_get;
  void* state_set;
  void* state_get;
  void* memory_allocate;
  void* memory_free;
  void* thread_pool_schedule;
  void* thread_pool_size;
  Error* (*future_create)(FutureArgs*);
  Error* (*future_set_available)(FutureArgs*);
  Error* (*future_set_error)(FutureErrorArgs*);
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extension;
  const Api* api;
  Context* context;
  int stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;  // set by a handler whose work goes on after it has returned
};

using namespace error_codes;

template <typename Struct, typename Field>
bool has(const Struct& object, Field Struct::* field) {
  const auto* end = reinterpret_cast<const std::byte*>(&(object.*field) + 1);
  return object.struct_size >=
         static_cast<std::size_t>(end - reinterpret_cast<const std::byte*>(&object));
}

inline bool has_futures(const Api& api) { return has(api, &Api::future_set_error); }

}  // namespace khorovod::xla
