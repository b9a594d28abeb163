#include "adapters/tensorflow_done.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <functional>

namespace khorovod::tensorflow {

namespace {

using Function = std::function<void()>;

class CopiedDone final : public Done {
 public:
  explicit CopiedDone(const Function& function) : function_(function) {}
  void run() override {
    api().RunAsyncOpKernelDoneCallback(reinterpret_cast<AsyncOpKernelDoneCallback*>(&function_));
  }

 private:
  Function function_;
};

bool is_code(const void* address) {
  Dl_info info;
  return address != nullptr && ::dladdr(address, &info) != 0;
}

// Two words of storage, then the addresses of the functions that copy and that call: code of some
// library, all of them.
bool looks_like_a_function(const void* callback) {
  struct Layout {
    void* storage[2];
    void* manager;
    void* invoker;
  } layout;
  static_assert(sizeof(Layout) == sizeof(Function));
  std::memcpy(&layout, callback, sizeof layout);
  return is_code(layout.manager) && is_code(layout.invoker);
}

}  // namespace

std::unique_ptr<Done> Done::copy_of(AsyncOpKernelDoneCallback* callback) {
#if defined(__GLIBCXX__)
  // The answer is the same every time.
  static const bool trusted = looks_like_a_function(callback);
  if (trusted) return std::make_unique<CopiedDone>(*reinterpret_cast<const Function*>(callback));
#endif
  return nullptr;
}

}  // namespace khorovod::tensorflow
