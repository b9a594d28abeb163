// The coordinator's book: who has announced what, and what can run. It decides; it sends nothing
// and asks no clock. Only rank 0 has one.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/plan.h"
#include "engine/request.h"

namespace khorovod {

struct NegotiatorOptions {
  std::size_t fusion_threshold = std::size_t{128} << 20;
  std::size_t cache_capacity = 1024;
};

// A tensor that some ranks wait for and others have not announced.
struct PendingTensor {
  std::string name;
  OpKind kind;
  Nanoseconds since;
  std::vector<int> missing;
};

class Negotiator {
 public:
  Negotiator(int size, NegotiatorOptions options);

  // False if the announcement cannot have come from a correct peer.
  bool announce(int rank, const Announcement& announcement, Nanoseconds now);
  // `rank` has carried out all decisions up to this batch.
  void acknowledge(int rank, std::uint64_t batch);

  bool anything_ready() const { return !ready_.empty() || !failed_.empty(); }
  // Everything that can run now. Inline plans have their results computed.
  Decisions decide();

  std::vector<PendingTensor> pending() const;
  std::uint64_t cache_hits() const { return cache_hits_; }

 private:
  // What is known of a name: the agreed request and who has announced it in this round.
  struct Entry {
    Request request;
    int first_rank = -1;
    int count = 0;
    std::vector<bool> announced;
    std::vector<std::vector<std::byte>> payloads;  // by rank; kept allocated between rounds
    int payload_count = 0;
    Nanoseconds since = 0;
    std::string error;
    std::uint32_t id = 0;  // 0: not cached
    std::list<Entry*>::iterator recent;
  };
  struct Retired {
    Request request;
    std::uint64_t batch;  // announced to the ranks with this one
  };

  Entry& entry_for(const Request& request);
  void retire(Entry& entry);
  void forget(Entry& entry);
  void touch(Entry& entry);
  void evict();
  Plan plan_for(const std::vector<Entry*>& entries, Plan::Kind kind);
  void reduce_inline(Entry& entry, std::vector<std::byte>& result);
  void close_round(Entry& entry);

  const int size_;
  const NegotiatorOptions options_;
  std::unordered_map<std::string, std::unique_ptr<Entry>> by_name_;
  std::unordered_map<std::uint32_t, Entry*> by_id_;
  std::list<Entry*> recent_;  // cached entries, the most recently used first
  std::unordered_map<std::uint32_t, Retired> retired_;
  std::vector<std::uint32_t> newly_retired_;
  std::vector<std::uint64_t> acknowledged_;  // by rank
  std::vector<Entry*> ready_;
  std::vector<Entry*> failed_;
  std::uint32_t next_id_ = 1;
  std::uint64_t next_plan_ = 1;
  std::uint64_t next_batch_ = 1;
  std::uint64_t cache_hits_ = 0;
};

}  // namespace khorovod
