#include "adapters/tensorflow_api.h"

#include <dlfcn.h>

namespace khorovod::tensorflow {

namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";

Api& the_api() {
  static Api only;
  return only;
}

template <typename Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

std::string find_api(Api& api) {
  // By its name among the libraries that are loaded: Python loads them where RTLD_DEFAULT does not
  // look. It stays loaded, so the reference may go.
  void* library = ::dlopen(kLibrary, RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return kLibrary;
  std::string missing;
#define KHOROVOD_FIND(result, name, arguments) \
  if (missing.empty() && !find(library, "TF_" #name, api.name)) missing = "TF_" #name;
  KHOROVOD_TENSORFLOW_FUNCTIONS(KHOROVOD_FIND)
#undef KHOROVOD_FIND
  find(library, "TF_GetIterId", api.GetIterId);
  ::dlclose(library);
  return missing;
}

const Api& api() { return the_api(); }

void set_api(const Api& api) { the_api() = api; }

}  // namespace khorovod::tensorflow
