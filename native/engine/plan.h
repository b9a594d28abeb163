// What the coordinator decides: which tensors run together, next, on every rank. Plans are numbered
// through the whole job and every rank carries them out in that order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "engine/request.h"

namespace khorovod {

// A tensor of a plan: by cache id if every rank knows it, else by name.
struct PlanEntry {
  std::uint32_t id = 0;  // 0: use the name
  std::string name;
  std::uint32_t assign_id = 0;    // from now on this id stands for the request; 0: not cached
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
  std::string error;  // of a failed plan
  std::vector<PlanEntry> entries;
};

// What a rank tells the coordinator: requests that are ready here, by id or in full, the small ones
// with their data. `acknowledged` is the last batch of decisions that the rank has carried out.
struct Announcement {
  std::uint32_t id = 0;  // 0: `request` is set
  Request request;
  bool has_payload = false;
  Bytes payload;  // points into the message
};

// What the coordinator tells a rank: ids that are no longer valid, and plans.
struct Decisions {
  std::uint64_t batch = 0;
  std::vector<std::uint32_t> retired;
  std::vector<Plan> plans;
};

void write_decisions(Writer& out, const Decisions& decisions);
bool read_decisions(Reader& in, Decisions& decisions);

// An announcement message is a header and items one after the other, so that it can be written
// while the submission queue is drained.
void write_announcement_header(Writer& out, std::uint64_t acknowledged);
void write_announced_id(Writer& out, std::uint32_t id, bool has_payload);
void write_announced_request(Writer& out, const Request& request, bool has_payload);
// Calls item(Announcement) for each; false if the message is malformed.
template <typename Item>
bool read_announcements(Bytes message, std::uint64_t& acknowledged, Item item);

enum class AnnouncementTag : std::uint8_t { kId, kRequest, kIdWithPayload, kRequestWithPayload };

template <typename Item>
bool read_announcements(Bytes message, std::uint64_t& acknowledged, Item item) {
  Reader in(message);
  acknowledged = in.varint();
  while (in.ok() && !in.done()) {
    Announcement a;
    const auto tag = in.enumerator<AnnouncementTag>(4);
    a.has_payload =
        tag == AnnouncementTag::kIdWithPayload || tag == AnnouncementTag::kRequestWithPayload;
    if (tag == AnnouncementTag::kId || tag == AnnouncementTag::kIdWithPayload) {
      const std::uint64_t id = in.varint();
      if (id == 0 || id > UINT32_MAX) return false;
      a.id = static_cast<std::uint32_t>(id);
    } else if (!read_request(in, a.request)) {
      return false;
    }
    if (a.has_payload) a.payload = in.bytes();
    if (!in.ok()) return false;
    if (!item(a)) return false;
  }
  return in.ok();
}

}  // namespace khorovod
