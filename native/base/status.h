// The outcome of an operation as a value: nothing is thrown across threads or out of the engine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace khorovod {

enum class Code : std::uint8_t {
  kOk,
  kInvalid,   // misuse that this rank can see alone
  kMismatch,  // ranks disagree; the engine goes on working
  kPeerLost,  // a rank died or stalls; the world is gone
  kPeerLeft,  // a rank has shut down, others may still have results of it; the world is gone
  kShutdown,  // this rank shut down
  kInternal,  // a bug or a broken peer
  kAborted,   // what the operation needs is not there: its process set was removed, say
};

struct Status {
  Code code = Code::kOk;
  std::string message;
  int rank = -1;  // of a lost peer whose end somebody else may know more about

  bool ok() const { return code == Code::kOk; }
  static Status error(Code code, std::string message) { return {code, std::move(message), -1}; }
  static Status lost(int rank, std::string message) {
    return {Code::kPeerLost, std::move(message), rank};
  }
};

}  // namespace khorovod
