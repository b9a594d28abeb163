// Everything that reads bytes of another process, fed with any bytes at all. A target returns, or
// its reader is wrong: sanitizers see what it touches, and CHECKs that what was read is sound.
// Run by hand under libFuzzer (fuzz.cc) and, with a few thousand mutations, by hostile_bytes_test.
#pragma once

#include <string>
#include <vector>

#include "base/wire.h"

namespace khorovod::fuzz {

using Input = std::vector<std::byte>;

struct Target {
  const char* name;
  void (*run)(Bytes input);
  std::vector<Input> (*seeds)();  // inputs that a correct peer might send
  // Whether it only parses: then no allocation is larger than a multiple of the input.
  bool parses;
};

const std::vector<Target>& targets();

// No reader makes memory of more than this for an input of so many bytes.
constexpr std::size_t most_memory(std::size_t input) {
  return (std::size_t{128} << 10) + 128 * input;
}

// parsers.cc
void run_link(Bytes input);         // a control connection: frames, and what is in them
void run_coordinator(Bytes input);  // what ranks tell the coordinator, and its book
void run_decisions(Bytes input);    // what the coordinator tells a rank
void run_traces(Bytes input);       // what ranks record for the timeline
// machines.cc
void run_engine(Bytes input);  // a rank that carries out decisions
void run_plane(Bytes input);   // a data connection

// seeds.cc
std::vector<Input> link_seeds();
std::vector<Input> coordinator_seeds();
std::vector<Input> decision_seeds();
std::vector<Input> trace_seeds();
std::vector<Input> engine_seeds();
std::vector<Input> plane_seeds();

// An input of several messages: for each of them who sent it, its length, its bytes. What all send
// alike is there once: nonsense that ranks agree on gets further.
inline constexpr int kRanks = 4;
inline constexpr int kAllAlike = 0x80;
template <typename Message>
void for_each_message(Bytes input, Message message) {
  Reader in(input);
  while (in.ok() && !in.done()) {
    const int sender = in.u8();
    const Bytes bytes = in.bytes();
    if (!in.ok()) return;
    if (sender < kAllAlike) {
      message(sender % kRanks, bytes);
    } else {
      for (int peer = 0; peer < kRanks; ++peer) message(peer, bytes);
    }
  }
}

}  // namespace khorovod::fuzz
