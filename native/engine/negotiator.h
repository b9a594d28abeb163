// The coordinator's book: who has announced what, and what can run. It decides; it sends nothing
// and asks no clock. Only rank 0 has one.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/fusion.h"
#include "engine/op_key.h"
#include "engine/plan.h"
#include "engine/request.h"
#include "engine/trace.h"

namespace khorovod {

struct NegotiatorOptions {
  FusionRules fusion;
  std::size_t cache_capacity = 1024;
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

  // Who has announced an operation and who has not; empty lists if it does not wait for anybody.
  StalledTensor waits_for(OpKey key) const;
  // The operations that have waited since then, with how long that is.
  std::vector<StalledTensor> waiting_since(Nanoseconds then, Nanoseconds now) const;
  std::uint64_t cache_hits() const { return cache_hits_; }
  std::uint64_t last_batch() const { return next_batch_ - 1; }

  // While set, told of every operation that is decided: when which rank was ready.
  std::function<void(ReadyTrace)> on_ready;

 private:
  // What a member contributes where members may differ: the rows of each tensor of an allgather,
  // the rows of an alltoall's tensor for each member.
  using Sizes = std::vector<std::int64_t>;

  // What is known of a name: the agreed request and who has announced it in this round.
  struct Entry {
    const std::string name;
    Request request;
    MembersRef members;
    int first_rank = -1;
    int count = 0;
    bool queued = false;                           // ready or failed
    std::vector<bool> announced;                   // by member, as all below
    std::vector<Nanoseconds> arrived;              // of those that have announced it
    std::vector<Sizes> sizes;                      // of the members' last announcements
    std::vector<std::vector<std::byte>> payloads;  // kept allocated between rounds
    int payload_count = 0;
    std::string error;
    std::uint32_t id = 0;  // 0: not cached
    std::list<Entry*>::iterator recent;
  };
  // An id that some ranks may still use, and what it meant.
  struct Remembered {
    Request request;
    MembersRef members;
    std::vector<Sizes> sizes;
    std::uint64_t batch;  // announced to the ranks with this one
  };

  Entry& entry_for(const Request& request, const MembersRef& members, int rank);
  Entry* find(const Announcement& announcement, int rank, Request& remembered,
              const Request*& request, bool& sane);
  bool book(Entry& entry, const Request* request, int rank, const Announcement& announcement,
            Nanoseconds now);
  void join(int rank);
  void queue_if_ready(Entry& entry);
  bool everybody_is_here(const Entry& entry) const;
  void retire(Entry& entry);
  void forget(Entry& entry);
  void touch(Entry& entry);
  void evict();
  bool can_answer_inline(const Entry& entry) const;
  PlanEntry plan_entry(Entry& entry, Plan::Kind kind);
  Plan plan_for(const std::vector<Entry*>& entries, Plan::Kind kind);
  Sizes numbers_of(const Entry& entry) const;
  void answer_inline(Entry& entry, PlanEntry& item);
  void reduce_payloads(Entry& entry, std::vector<std::byte>& result);
  void gather_payloads(const Entry& entry, std::vector<std::byte>& result) const;
  std::string administrate(Entry& entry, PlanEntry& item);
  void drop_set(std::uint32_t id);
  std::uint32_t free_set_id() const;
  void close_round(Entry& entry);
  StalledTensor waits_for(const Entry& entry) const;
  std::size_t bytes_to_move(const Entry& entry) const;

  const int size_;
  const NegotiatorOptions options_;
  std::map<std::uint32_t, MembersRef> sets_;                              // by id; 0 is everybody
  std::unordered_map<OpKey, std::unique_ptr<Entry>, OpKeyHash> by_name_;  // keys name the entries
  std::unordered_map<std::uint32_t, Entry*> by_id_;
  std::list<Entry*> recent_;  // cached entries, the most recently used first
  std::unordered_map<std::uint32_t, Remembered> remembered_;
  std::vector<Retired> newly_retired_;
  std::vector<std::uint64_t> acknowledged_;  // by rank
  std::vector<bool> joined_;                 // by rank
  int joined_count_ = 0;
  int last_joined_ = -1;
  std::vector<Entry*> ready_;
  std::vector<Entry*> failed_;
  std::uint32_t next_id_ = 1;
  std::uint64_t next_plan_ = 1;
  std::uint64_t next_batch_ = 1;
  std::uint64_t cache_hits_ = 0;
};

}  // namespace khorovod
