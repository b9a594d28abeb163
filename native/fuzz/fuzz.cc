// The entry of libFuzzer; one program per target, named by KHOROVOD_FUZZ_TARGET. With a directory
// in KHOROVOD_FUZZ_SEEDS the target's seeds are written there first.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fuzz/targets.h"

namespace {

const khorovod::fuzz::Target& target() {
  for (const auto& one : khorovod::fuzz::targets()) {
    if (std::strcmp(one.name, KHOROVOD_FUZZ_TARGET) == 0) return one;
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* directory = std::getenv("KHOROVOD_FUZZ_SEEDS");
  if (directory == nullptr) return 0;
  int number = 0;
  for (const auto& seed : target().seeds()) {
    const std::string path = std::string(directory) + "/seed" + std::to_string(number++);
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) std::abort();
    std::fwrite(seed.data(), 1, seed.size(), file);
    std::fclose(file);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto run = target().run;
  run(khorovod::Bytes(reinterpret_cast<const std::byte*>(data), size));
  return 0;
}
