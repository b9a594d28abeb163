// What the coordinator decides: which operations run together, next, on the ranks of a process set.
// Plans are numbered through the whole job and every rank carries out its own in that order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/members.h"
#include "base/status.h"
#include "base/wire.h"
#include "engine/request.h"
#include "engine/stall.h"

namespace khorovod {

// An operation of a plan: by cache id if every member knows it, else by name.
struct PlanEntry {
  std::uint32_t id = 0;  // 0: use the name
  std::string name;
  std::uint32_t assign_id = 0;     // from now on this id stands for the request; 0: not cached
  std::optional<Request> request;  // for members that have joined: they have not asked for it
  // Of an allgather, for each tensor the members' rows; of an alltoall, the rows from each member
  // to each; of a join the last rank and the number
  // of the next operation without a name; of new process sets their ids.
  std::vector<std::int64_t> numbers;
  std::vector<std::byte> result;  // of an inline plan
};

struct Plan {
  enum class Kind : std::uint8_t {
    kRun,     // move the bytes through the data plane
    kInline,  // the result is in the entries
    kFail,    // the ranks disagree
  };
  static constexpr int kKindCount = 3;

  std::uint64_t number = 0;
  Kind kind = Kind::kRun;
  std::uint32_t set = 0;
  std::string error;  // of a failed plan
  std::vector<PlanEntry> entries;
  MembersRef members;  // whom it is for; does not travel
};

// What a rank tells the coordinator: requests that are ready here, by id or in full, the small ones
// with their data.
struct Announcement {
  std::uint32_t id = 0;  // 0: `request` is set
  Request request;
  bool has_payload = false;
  Bytes payload;  // points into the message
};

// An id that is no longer valid, and who knew it.
struct Retired {
  std::uint32_t id = 0;
  MembersRef members;  // does not travel
};

// Because of a stall, the coordinator tells a rank ...
struct StallNotice {
  bool account_wanted = false;  // ... to give an account of itself
  bool heard = false;           // ... that its complaint was heard
  std::string report{};         // ... what was found out; empty: nothing (yet)

  bool empty() const { return !account_wanted && !heard && report.empty(); }
};

// What the coordinator tells a rank.
struct Decisions {
  std::uint64_t batch = 0;
  bool tracing = false;
  StallNotice stall;
  std::vector<Retired> retired;
  std::vector<Plan> plans;

  // Whether there is anything for a rank to do.
  bool concern(int rank) const;
  bool concern_all(int world_size) const;  // and everything concerns everybody
};

// Writes what concerns a rank.
void write_decisions(Writer& out, const Decisions& decisions, int rank);
bool read_decisions(Reader& in, Decisions& decisions);

// A message from a rank to the coordinator is a header and items one after the other, so that it
// can be written while the submission queue is drained. `acknowledged` is the last batch of
// decisions that the rank has carried out.
enum class ItemTag : std::uint8_t {
  kId,
  kRequest,
  kIdWithPayload,
  kRequestWithPayload,
  kTrace,
  kComplaints,
  kAccount,
};
inline constexpr int kItemTagCount = 7;

void write_message_header(Writer& out, std::uint64_t acknowledged);
void write_announced_id(Writer& out, std::uint32_t id, bool has_payload);
void write_announced_request(Writer& out, const Request& request, bool has_payload);
void write_traces(Writer& out, Bytes traces);
void write_item(Writer& out, const Complaints& complaints);
void write_item(Writer& out, const Account& account);

// Calls announced(Announcement), traced(Bytes), complained(Complaints) and told(Account) for each
// item; false if the message is malformed.
template <typename Announced, typename Traced, typename Complained, typename Told>
bool read_message(Bytes message, std::uint64_t& acknowledged, Announced announced, Traced traced,
                  Complained complained, Told told) {
  Reader in(message);
  acknowledged = in.varint();
  while (in.ok() && !in.done()) {
    const auto tag = in.enumerator<ItemTag>(kItemTagCount);
    if (tag == ItemTag::kTrace) {
      const Bytes traces = in.bytes();
      if (!in.ok()) return false;
      traced(traces);
      continue;
    }
    if (tag == ItemTag::kComplaints) {
      Complaints complaints;
      if (!read_complaints(in, complaints)) return false;
      complained(complaints);
      continue;
    }
    if (tag == ItemTag::kAccount) {
      Account account;
      if (!read_account(in, account)) return false;
      told(std::move(account));
      continue;
    }
    Announcement a;
    a.has_payload = tag == ItemTag::kIdWithPayload || tag == ItemTag::kRequestWithPayload;
    if (tag == ItemTag::kId || tag == ItemTag::kIdWithPayload) {
      const std::uint64_t id = in.varint();
      if (id == 0 || id > UINT32_MAX) return false;
      a.id = static_cast<std::uint32_t>(id);
    } else if (!read_request(in, a.request)) {
      return false;
    }
    if (a.has_payload) a.payload = in.bytes();
    if (!in.ok()) return false;
    if (!announced(a)) return false;
  }
  return in.ok();
}

}  // namespace khorovod
