#include "base/process.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace khorovod {

int pid_of(int pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd));
  constexpr const char* kField = "Pid:";
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with(kField)) {
      const int pid = std::atoi(line.c_str() + std::strlen(kField));
      return pid > 0 ? pid : 0;
    }
  }
  return 0;
}

char process_state(int pid) {
  if (pid <= 0) return '?';
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  // The name before the last ")" may contain anything.
  const std::size_t name_end = line.rfind(") ");
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
}

}  // namespace khorovod
