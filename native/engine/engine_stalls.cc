// The engine's part in stalls: noticing that operations wait for too long, complaining to the
// coordinator, giving an account of this rank; on the coordinator, asking and reporting. What is
// said and when is decided in stall.h.
#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/process.h"
#include "engine/engine.h"

namespace khorovod {

namespace {

// How long the coordinator waits for accounts, and a rank for the coordinator to hear it.
constexpr Nanoseconds kAnswerTime = kSecond;
constexpr Nanoseconds kSilence = 3 * kSecond;

constexpr std::size_t kMostComplaints = 32;
constexpr std::size_t kMostAsked = 9;
constexpr std::size_t kMostPending = 8;

// Of a process that does not do its part although no interpreter is needed for it.
std::string explain_silence(char state, int pid) {
  if (state == 'T' || state == 't' || state == 'D') return explain_state(state, pid);
  return state == '?' ? "does not answer"
                      : "does not answer (process state " + std::string(1, state) + ")";
}

}  // namespace

// ---------------------------------------------------------------------------------------------------
// Every rank: is anything late?

void Engine::watch(Nanoseconds now) {
  next_look_ = now + negotiation_clock_.interval();
  if (inquest_.open) {
    if (now >= inquest_.deadline) conclude_inquest(now);
    next_look_ = std::min(next_look_, inquest_.open ? inquest_.deadline : next_look_);
  }
  if (waiting_ == 0) {
    unheard_since_ = 0;
    return;
  }
  const Waits waits = waits_here();
  if (const StallVerdict verdict = negotiation_clock_.look(waits.for_others, now);
      verdict != StallVerdict::kFine) {
    complain(now, verdict == StallVerdict::kEnd);
  }
  if (waits.for_others == 0) unheard_since_ = 0;
  if (const StallVerdict verdict = plane_clock_.look(waits.for_bytes, now);
      verdict != StallVerdict::kFine) {
    report_still_plane(now - waits.for_bytes, verdict == StallVerdict::kEnd);
  }
  if (unheard_since_ != 0 && now - unheard_since_ >= kSilence) report_silent_coordinator();
}

Engine::Waits Engine::waits_here() const {
  std::unordered_set<const Operation*> running;
  for (const auto& [number, work] : running_) {
    for (const OperationRef& operation : work.operations) running.insert(operation.get());
  }
  Waits waits;
  const std::lock_guard lock(submit_mutex_);
  for (const auto& [key, operation] : in_flight_) {
    const bool moves = running.contains(operation.get());
    Nanoseconds since = operation->submitted;
    if (moves) since = std::max(since, last_moved_);
    // A rank that has joined waits for nobody as long as it stands in for others' operations.
    if (operation->request.kind == OpKind::kJoin) since = std::max(since, last_stand_in_);
    Nanoseconds& oldest = moves ? waits.for_bytes : waits.for_others;
    oldest = oldest == 0 ? since : std::min(oldest, since);
    if (moves) {
      waits.moving.push_back(operation->request.label());
    } else {
      waits.operations.push_back({since, operation});
    }
  }
  std::sort(waits.operations.begin(), waits.operations.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::sort(waits.moving.begin(), waits.moving.end());
  return waits;
}

void Engine::complain(Nanoseconds now, bool final) {
  const Waits waits = waits_here();
  const Nanoseconds limit = final ? options_.stall.shutdown : options_.stall.warn;
  Complaints complaints{final, {}};
  for (const auto& [since, operation] : waits.operations) {
    if (now - since < limit || complaints.items.size() == kMostComplaints) break;
    complaints.items.push_back({operation->request.set, operation->request.name, now - since});
  }
  if (world_.rank == 0) return take_complaints(0, complaints, now);
  outgoing_.clear();
  write_message_header(outgoing_, carried_out_);
  write_item(outgoing_, complaints);
  world_.link->send(0, outgoing_.view());
  world_.link->wake(0);
  if (unheard_since_ == 0) unheard_since_ = now;
  unheard_final_ = final;
}

// The plane moves bytes without anybody's interpreter: a rank that does not is stopped, or hangs in
// the kernel.
void Engine::report_still_plane(Nanoseconds waited, bool final) {
  std::string blamed;
  for (const Peer& peer : world_.peers) {
    const char state = process_state(peer.local_pid);
    if (state != 'T' && state != 't' && state != 'D') continue;
    blamed +=
        (blamed.empty() ? "" : "; ") + describe(peer) + " " + explain_state(state, peer.local_pid);
  }
  if (blamed.empty()) {
    const int blocker = world_.plane->wanted_news().from;
    blamed = (blocker < 0 ? "another rank" : describe_peer(blocker)) + " does not do its part";
  }
  const std::string text = "stalled for " + seconds_text(waited) + " while moving " +
                           quoted_list(waits_here().moving, kMostPending) + ": " + blamed;
  if (!final) return observe(text);
  world_.link->abort(Status::error(Code::kPeerLost, text));
}

void Engine::report_silent_coordinator() {
  unheard_since_ = 0;
  int pid = 0;
  for (const Peer& peer : world_.peers) {
    if (peer.rank == 0) pid = peer.local_pid;
  }
  const Waits waits = waits_here();
  if (waits.operations.empty()) return;
  std::vector<std::string> labels;
  for (const auto& [since, operation] : waits.operations) {
    labels.push_back(operation->request.label());
  }
  const std::string text = "stalled for " + seconds_text(now_ns() - waits.for_others) +
                           " waiting for " + quoted_list(labels, kMostPending) + ": " +
                           describe_peer(0) + ", the coordinator, " +
                           explain_silence(process_state(pid), pid);
  if (!unheard_final_) return observe(text);
  world_.link->abort(Status::error(Code::kPeerLost, text));
}

// ---------------------------------------------------------------------------------------------------
// Every rank: what the coordinator says and asks

void Engine::heed(const StallNotice& notice) {
  if (notice.empty()) return;
  if (notice.heard) unheard_since_ = 0;
  if (notice.account_wanted) give_account();
  if (!notice.report.empty()) observe("stalled: " + notice.report);
}

// Where the program stands only Python knows, and its lock may be held for ever: a thread of its
// own asks.
void Engine::give_account() {
  inspector_.post([this] {
    std::string place = observer_.place ? observer_.place() : "";
    {
      const std::lock_guard lock(submit_mutex_);
      place_ = std::move(place);
    }
    account_due_.store(true, std::memory_order_release);
    world_.link->wake_self();
  });
}

void Engine::send_account() {
  Account account;
  for (const auto& [since, operation] : waits_here().operations) {
    if (account.pending.size() == kMostPending) break;
    account.pending.push_back(operation->request.label());
  }
  for (std::size_t i = 1; i <= std::min(recent_count_, recent_.size()); ++i) {
    account.done.push_back(recent_[(recent_count_ - i) % recent_.size()].label());
  }
  {
    const std::lock_guard lock(submit_mutex_);
    account.place = place_;
  }
  if (world_.rank == 0) return take_account(0, std::move(account));
  outgoing_.clear();
  write_message_header(outgoing_, carried_out_);
  write_item(outgoing_, account);
  world_.link->send(0, outgoing_.view());
  world_.link->wake(0);
}

// What a label is made of, in memory that is used again.
void Engine::remember(const Operation& operation) {
  Request& slot = recent_[recent_count_++ % recent_.size()];
  slot.kind = operation.request.kind;
  slot.grouped = operation.request.grouped;
  slot.cacheable = operation.request.cacheable;
  slot.set = operation.request.set;
  slot.name.assign(operation.request.name);
  if (operation.stands_in) last_stand_in_ = now_ns();
}

void Engine::observe(const std::string& text) {
  inspector_.post([this, text] {
    if (observer_.warn) observer_.warn(text);
  });
}

// ---------------------------------------------------------------------------------------------------
// The coordinator

void Engine::notify(int rank, StallNotice notice) {
  Decisions nothing_new;
  nothing_new.batch = negotiator_->last_batch();
  nothing_new.tracing = tracing_;
  nothing_new.stall = std::move(notice);
  outgoing_.clear();
  write_decisions(outgoing_, nothing_new, rank);
  world_.link->send(rank, outgoing_.view());
  world_.link->wake(rank);
}

void Engine::take_complaints(int rank, const Complaints& complaints, Nanoseconds now) {
  if (rank != 0) notify(rank, {.heard = true});
  // Ranks that wait together complain together: one report is enough.
  const bool told = last_report_ != 0 && now - last_report_ < options_.stall.warn / 2;
  if (told && !complaints.final) return;
  if (!inquest_.open) {
    inquest_ = {.open = true, .deadline = now + kAnswerTime};
    next_look_ = std::min(next_look_, inquest_.deadline);
    ask_for_account(rank);
  }
  inquest_.final |= complaints.final;
  for (const Complaint& item : complaints.items) {
    Nanoseconds& waited = inquest_.waited[{item.set, item.name}];
    waited = std::max(waited, item.waited);
    for (const int missing : negotiator_->waits_for({item.set, item.name}).missing) {
      ask_for_account(missing);
    }
  }
}

void Engine::ask_for_account(int rank) {
  if (inquest_.ranks.contains(rank) || inquest_.ranks.size() == kMostAsked) return;
  StalledRank& asked = inquest_.ranks[rank];
  asked.name = describe_peer(rank);
  for (const Peer& peer : world_.peers) {
    if (peer.rank == rank) asked.pid = peer.local_pid;
  }
  if (rank == 0) return give_account();
  notify(rank, {.account_wanted = true});
}

void Engine::take_account(int rank, Account account) {
  const auto asked = inquest_.ranks.find(rank);
  if (!inquest_.open || asked == inquest_.ranks.end()) return;
  asked->second.account = std::move(account);
  asked->second.answered = true;
  const bool all = std::all_of(inquest_.ranks.begin(), inquest_.ranks.end(),
                               [](const auto& item) { return item.second.answered; });
  if (all) inquest_.deadline = next_look_ = 0;
}

void Engine::conclude_inquest(Nanoseconds now) {
  const Inquest inquest = std::exchange(inquest_, {});
  const std::vector<StalledTensor> tensors = stalled_tensors(inquest, now);
  if (tensors.empty()) return;  // whoever was missing has come
  std::map<int, StalledRank> ranks = inquest.ranks;
  for (auto& [rank, asked] : ranks) {
    if (!asked.answered) asked.state = process_state(asked.pid);
  }
  const StallReport report = report_stall(tensors, ranks, options_.stall);
  if (!inquest.final || last_report_ == 0) observe(report.text);
  last_report_ = now;
  if (inquest.final) {
    return world_.link->abort(Status::error(Code::kPeerLost, "stalled: " + report.summary));
  }
  std::set<int> waiting;
  for (const StalledTensor& tensor : tensors) {
    waiting.insert(tensor.waiting.begin(), tensor.waiting.end());
  }
  for (const int rank : waiting) {
    if (rank != 0) notify(rank, {.report = report.summary});
  }
}

// What ranks have complained of; and what others wait for that will complain in a moment, so that
// ranks that wait for each other are shown together.
std::vector<StalledTensor> Engine::stalled_tensors(const Inquest& inquest, Nanoseconds now) const {
  std::map<std::string, StalledTensor> by_label;
  for (StalledTensor& tensor : negotiator_->waiting_since(now - options_.stall.warn / 2, now)) {
    by_label[tensor.label] = std::move(tensor);
  }
  for (const auto& [key, waited] : inquest.waited) {
    StalledTensor tensor = negotiator_->waits_for({key.first, key.second});
    if (tensor.missing.empty()) continue;
    tensor.waited = waited;
    by_label[tensor.label] = std::move(tensor);
  }
  std::vector<StalledTensor> tensors;
  for (auto& [label, tensor] : by_label) tensors.push_back(std::move(tensor));
  return tensors;
}

}  // namespace khorovod
