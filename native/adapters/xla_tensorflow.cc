// The XLA inside of TensorFlow. It has no public interface for this: the function that gives its
// table of functions is found by its C++ name. Where it is not there, there is no compiled route.
#include <dlfcn.h>

#include <string_view>

#include "adapters/xla.h"

namespace khorovod::xla {

namespace {

constexpr const char* kLibrary = "libtensorflow_cc.so.2";
constexpr const char* kGetApi = "_ZN3xla3ffi12GetXlaFfiApiEv";  // xla::ffi::GetXlaFfiApi()

Span span_of(std::string_view text) { return {text.data(), text.size()}; }

std::string taken_from(const Api& api, Error* error) {
  ErrorMessageArgs asked{sizeof asked, nullptr, error, nullptr};
  api.error_message(&asked);
  std::string message = asked.message == nullptr ? "an error" : asked.message;
  ErrorArgs gone{sizeof gone, nullptr, error};
  api.error_destroy(&gone);
  return message;
}

std::string add() {
  // It stays loaded, so the reference may go.
  void* library = ::dlopen(kLibrary, RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::string("there is no ") + kLibrary;
  const auto get = reinterpret_cast<const Api* (*)()>(::dlsym(library, kGetApi));
  ::dlclose(library);
  const Api* api = get == nullptr ? nullptr : get();
  if (api == nullptr || !has(*api, &Api::handler_register) || api->version.major != 0) {
    return "its XLA has no calls that are known here";
  }
  RegisterArgs args{.struct_size = sizeof args,
                    .extension = nullptr,
                    .name = span_of(kTarget),
                    .platform = span_of("Host"),
                    .instantiate = nullptr,
                    .prepare = nullptr,
                    .initialize = nullptr,
                    .execute = handle,
                    .traits = 0};
  Error* error = api->handler_register(&args);
  return error == nullptr ? "" : taken_from(*api, error);
}

}  // namespace

std::string add_to_tensorflow() {
  static const std::string outcome = add();  // a name can be registered once
  return outcome;
}

}  // namespace khorovod::xla
