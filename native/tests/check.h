// The smallest test support that names what failed: CHECK and a main that runs the file's cases.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace khorovod::testing {

// Whatever takes so long hangs. Nothing less would do under a sanitizer on a machine that is busy.
inline constexpr std::int64_t kHangNs = 300'000'000'000;

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Register {
  Register(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::abort();
}

template <typename A, typename B>
void check_equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " is not " << b;
  fail(file, line, out.str());
}

}  // namespace khorovod::testing

#define TEST(name)                                                         \
  static void name();                                                      \
  static const ::khorovod::testing::Register register_##name(#name, name); \
  static void name()

#define CHECK(condition) \
  ((condition) ? void()  \
               : ::khorovod::testing::fail(__FILE__, __LINE__, "CHECK failed: " #condition))
#define CHECK_EQ(a, b) ::khorovod::testing::check_equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

#define TEST_MAIN()                                                \
  int main(int argc, char** argv) {                                \
    int ran = 0;                                                   \
    for (const auto& test : ::khorovod::testing::cases()) {        \
      if (argc > 1 && std::string(argv[1]) != test.name) continue; \
      std::printf("%s\n", test.name);                              \
      std::fflush(stdout);                                         \
      test.body();                                                 \
      ++ran;                                                       \
    }                                                              \
    std::printf("%d passed, 0 failed\n", ran);                     \
    return ran > 0 ? 0 : 1;                                        \
  }
