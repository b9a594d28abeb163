#include "transport/mpi_library.h"

#include <dlfcn.h>

#include <array>
#include <climits>
#include <cstring>
#include <type_traits>

namespace khorovod {

namespace {

// Larger than the MPI_Status, and than the longest error text, of any MPI.
struct alignas(16) AnyStatus {
  std::array<std::byte, 256> bytes;
};
constexpr std::size_t kLongestText = 4096;

// `Handle` is what this MPI's handles are: all of one kind.
template <typename Handle>
class MpiLibrary final : public MessagePassing {
 public:
  MpiLibrary(void* module, const MpiHandles& handles)
      : comm_(as_handle(handles.comm)), byte_(as_handle(handles.byte)) {
    find(module, "MPI_Issend", issend_);
    find(module, "MPI_Irecv", irecv_);
    find(module, "MPI_Test", test_);
    find(module, "MPI_Cancel", cancel_);
    find(module, "MPI_Get_count", get_count_);
    find(module, "MPI_Test_cancelled", test_cancelled_);
    find(module, "MPI_Error_string", error_string_);
  }

  // The function that it lacks; "" if there is none.
  const std::string& missing() const { return missing_; }

  int start_send(const std::byte* from, std::size_t bytes, int peer, int tag,
                 Request& request) override {
    Handle handle{};
    const int error = issend_(from, static_cast<int>(bytes), byte_, peer, tag, comm_, &handle);
    request = as_word(handle);
    return error;
  }

  int start_receive(std::byte* to, std::size_t bytes, int peer, int tag,
                    Request& request) override {
    Handle handle{};
    const int error = irecv_(to, static_cast<int>(bytes), byte_, peer, tag, comm_, &handle);
    request = as_word(handle);
    return error;
  }

  int test(Request& request, bool& done, std::size_t& bytes) override {
    Handle handle = as_handle(request);
    int flag = 0;
    AnyStatus status{};
    if (const int error = test_(&handle, &flag, &status); error != 0) return error;
    request = as_word(handle);
    done = flag != 0;
    bytes = 0;
    if (!done) return 0;
    int cancelled = 0;
    if (const int error = test_cancelled_(&status, &cancelled); error != 0) return error;
    if (cancelled != 0) return 0;  // there is no count
    int count = 0;
    const int error = get_count_(&status, byte_, &count);
    bytes = count < 0 ? 0 : static_cast<std::size_t>(count);
    return error;
  }

  int cancel(Request& request) override {
    Handle handle = as_handle(request);
    const int error = cancel_(&handle);
    request = as_word(handle);
    return error;
  }

  // MPI may use it until the process ends.
  void keep(std::unique_ptr<std::byte[]> memory) override {
    [[maybe_unused]] const std::byte* const kept = memory.release();
  }

  std::string describe(int error) override {
    std::string text(kLongestText, '\0');
    int length = 0;
    if (error_string_(error, text.data(), &length) != 0) length = 0;
    text.resize(length < 0 ? 0 : std::min(static_cast<std::size_t>(length), kLongestText));
    return text.empty() ? "error " + std::to_string(error) : text;
  }

 private:
  static Handle as_handle(std::uint64_t word) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(word));
    } else {
      return static_cast<Handle>(word);
    }
  }
  static std::uint64_t as_word(Handle handle) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<std::uintptr_t>(handle);
    } else {
      return static_cast<std::uint32_t>(handle);
    }
  }

  template <typename Function>
  void find(void* module, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(module, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }

  const Handle comm_;
  const Handle byte_;
  std::string missing_;
  int (*issend_)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv_)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test_)(Handle*, int*, void*) = nullptr;
  int (*cancel_)(Handle*) = nullptr;
  int (*get_count_)(const void*, Handle, int*) = nullptr;
  int (*test_cancelled_)(const void*, int*) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
};

template <typename Handle>
Status make(void* module, const MpiHandles& handles, std::unique_ptr<MessagePassing>& library) {
  auto made = std::make_unique<MpiLibrary<Handle>>(module, handles);
  if (!made->missing().empty()) {
    return Status::error(Code::kInternal, "the MPI library of mpi4py has no " + made->missing());
  }
  library = std::move(made);
  return {};
}

}  // namespace

Status open_mpi_library(const MpiHandles& handles, std::unique_ptr<MessagePassing>& library) {
  // Only looks it up, with the libraries that it is linked with: Python has loaded it, and keeps
  // it.
  void* const module = ::dlopen(handles.module.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (module == nullptr) {
    return Status::error(Code::kInternal, "mpi4py's module " + handles.module + " is not loaded");
  }
  if (handles.bytes == sizeof(void*)) return make<void*>(module, handles, library);
  if (handles.bytes == sizeof(int)) return make<int>(module, handles, library);
  return Status::error(Code::kInternal, "handles of this MPI have " +
                                            std::to_string(handles.bytes) +
                                            " bytes, which is not known here");
}

}  // namespace khorovod
