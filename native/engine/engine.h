// The engine of one rank: takes operations, agrees with the other ranks on what to run, has it run
// by the data plane, and completes them.
//
// It is a state machine under a lock, the *progress lock*; whoever holds it *drives*. A caller that
// waits for an operation drives by itself; what nobody waits for is driven by the engine thread,
// which otherwise sleeps. Several engines may live in one process (tests run ranks as threads).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "engine/completion_pool.h"
#include "engine/events.h"
#include "engine/handing.h"
#include "engine/link.h"
#include "engine/negotiator.h"
#include "engine/op_key.h"
#include "engine/operation.h"
#include "engine/polling.h"
#include "engine/stall.h"
#include "engine/timeline.h"
#include "engine/yielding.h"
#include "planes/data_plane.h"

namespace khorovod {

struct EngineOptions {
  NegotiatorOptions negotiator;
  Nanoseconds cycle_time = 0;  // least time between two decisions of the coordinator
  Nanoseconds spin = 0;        // how long a waiting caller spins before it sleeps
  StallRules stall;
};

// The program around the engine. Called on a thread of its own; may take its time.
struct Observer {
  std::function<std::string()> place;            // where the program stands, see Account
  std::function<void(const std::string&)> warn;  // tells the user
};

// A rank as the others know it, for messages and for noticing its death.
struct Peer {
  int rank = 0;
  std::string host;
  int pid = 0;
  UniqueFd pidfd;     // may be empty: another host, or a kernel without pidfds
  int local_pid = 0;  // as this process sees it; 0: not known
};

// "rank 2 (host a, pid 7)"
std::string describe(const Peer& peer);

// What connects this rank with the others. A world of one has no link and no plane.
struct World {
  int rank = 0;
  int size = 1;
  std::vector<Peer> peers;  // all ranks, this one too; it has no pidfd
  UniqueFd wake;            // this rank's eventfd
  std::unique_ptr<Link> link;
  std::unique_ptr<DataPlane> plane;
  std::shared_ptr<void> backing;            // what link and plane stand on; outlives them
  std::function<void()> close_descriptors;  // of the backing
};

enum class WaitResult { kDone, kInterrupted };

class Engine {
 public:
  Engine(World world, EngineOptions options, Observer observer = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return world_.rank; }
  int size() const { return world_.size; }
  const char* plane_name() const { return world_.plane ? world_.plane->name() : "none"; }
  const Counters& counters() const { return counters_; }
  std::vector<Event> recent_events() const { return events_.recent(); }
  // In a forked child nothing but this may be asked, and the engine is never destroyed.
  bool in_forked_child() const { return fork_guard_.in_child(); }

  // In a forked child: closes the descriptors, so that the child does not keep connections of its
  // parent open. Touches no lock and no shared memory.
  void abandon_in_child();

  // Takes an operation; an error is misuse and nothing was taken. With `caller_waits` nobody is
  // woken for it: the caller is about to wait. Else the engine thread is, after so much time.
  Status submit(const OperationRef& operation, bool caller_waits,
                Nanoseconds patience = kMillisecond);

  // Until the operation is done. kInterrupted: a signal may have come, look and wait again.
  WaitResult wait(Operation& operation);
  // Makes sure that somebody works on what was submitted; does not wait.
  void nudge();

  // Ends this rank's part; pending operations fail here and, where they need this rank, elsewhere.
  // `last_words` are for the others: why.
  void shutdown(const std::string& last_words = "");

  // The ranks of a process set; null if there is none with this id. Any thread.
  MembersRef members(std::uint32_t set) const;
  std::vector<MembersRef> process_sets() const;  // by id

  // Operations without a name are numbered by process set, alike on all members, whichever frontend
  // they come from. Any thread.
  std::int64_t take_unnamed_number(std::uint32_t set);
  std::int64_t next_unnamed_number(std::uint32_t set) const;
  void skip_unnamed_numbers(std::uint32_t set, std::int64_t next);  // to this one at least
  void restart_unnamed_numbers(std::uint32_t set);                  // the set is new

  // For the executor of handed operations.
  Handing& handing() { return handing_; }
  // How a work that was handed out has ended. An error ends the world. Any thread.
  void finish_handed(std::uint64_t work, std::string error);

  // Records what all ranks do into a file until it is stopped. Only on rank 0.
  Status start_timeline(const std::string& path, bool mark_cycles);
  bool stop_timeline();  // false: there was none

 private:
  struct CacheEntry {
    Request request;
    std::uint32_t id;
    OperationRef announced;  // waits for a plan under this id
  };

  // What the plane, or an executor, has.
  struct Running {
    std::uint64_t plan = 0;
    std::vector<OperationRef> operations;  // by segment; of a work that ends as a whole, just all
    std::size_t left = 0;                  // segments
    std::function<void()> at_end;          // before its operations complete
  };

  // -- Called with the progress lock held.
  WaitResult drive(Operation& operation);
  bool spin_for_news(std::uint32_t mark);
  bool yield_for_news(std::uint32_t mark);
  bool pause_polling(std::uint32_t mark);
  bool step();
  bool try_step();
  bool receive();
  bool advance_plane();
  bool announce_submissions();
  void announce(const OperationRef& operation, std::size_t& inline_budget);
  std::size_t write_payload(const Operation& operation, std::byte* to) const;
  bool on_message(int peer, Bytes message);
  bool decide();
  void tell_everybody(const Decisions& decisions, bool even_if_idle);
  void tell_last_batch();
  void tell_of_departures();
  bool carry_out(Decisions& decisions);
  bool carry_out(Plan& plan);
  void retire(std::uint32_t id);
  OperationRef take_announced(OpKey key);
  OperationRef resolve(const Plan& plan, const PlanEntry& entry);
  OperationRef stand_in(const PlanEntry& entry) const;
  bool complete_inline(Plan& plan, std::vector<OperationRef>& operations);
  bool take_result(Operation& operation, const PlanEntry& entry);
  bool change_process_sets(Operation& operation, const PlanEntry& entry);
  void fail_operations_of(std::uint32_t set);

  // -- Putting plans on the plane; called with the progress lock held.
  bool run_on_plane(const Plan& plan, std::vector<OperationRef>& operations);
  Work work_like(const Plan& plan, const Request& request) const;
  bool run_streams(const Plan& plan, std::vector<OperationRef>& operations);
  bool run_allgather(const Plan& plan, std::vector<OperationRef>& operations);
  bool run_alltoall(const Plan& plan, const OperationRef& operation);
  bool run_reducescatter(const Plan& plan, std::vector<OperationRef>& operations);
  bool run_adasum(const Plan& plan, const OperationRef& operation);
  std::byte* output(Operation& operation, std::size_t part, std::size_t bytes);
  void start(Work work, std::vector<OperationRef> operations, std::function<void()> at_end = {});
  void on_segment_done(std::uint64_t work, std::size_t segment);
  void part_done(const OperationRef& operation);
  void complete(OperationRef operation, Status status);
  void publish_finished();
  void check_world(bool quiet, int departed);
  bool stuck_on_departed(int& blocker);
  int awaited_in_vain(int first) const;
  bool is_departure(const Status& failure) const;
  bool results_may_come();
  bool last_wait_goes_on();
  Status departure(int rank) const;
  void give_up(Status reason);
  void fail_everything(Status reason);
  std::string describe_pending() const;
  Wanted wanted_news() const;
  bool busy() const;
  bool hand_over(std::uint32_t mark);

  // -- Handed operations; called with the progress lock held.
  bool hand(const Plan& plan, std::vector<OperationRef>& operations);
  bool take_handed_results();
  Status why_handed_work_failed(const Running& running, const std::string& error) const;

  // -- Stalls; called with the progress lock held.
  struct Waits {
    Nanoseconds for_others = 0;  // since when, at the most; 0: not at all
    Nanoseconds for_bytes = 0;
    std::vector<std::pair<Nanoseconds, OperationRef>> operations;  // that wait for others, by time
    std::vector<std::string> moving;                               // labels of those that move
  };
  struct Inquest {  // of rank 0: whom it has asked, and about what
    bool open = false;
    Nanoseconds deadline = 0;
    bool final = false;
    std::map<std::pair<std::uint32_t, std::string>, Nanoseconds> waited{};  // by set and name
    std::map<int, StalledRank> ranks{};
  };
  void watch(Nanoseconds now);
  Waits waits_here() const;
  void complain(Nanoseconds now, bool final);
  void report_still_plane(Nanoseconds waited, bool final);
  void report_silent_coordinator();
  void heed(const StallNotice& notice);
  void give_account();
  void send_account();
  void remember(const Operation& operation);
  void observe(const std::string& text);
  void notify(int rank, StallNotice notice);
  void take_complaints(int rank, const Complaints& complaints, Nanoseconds now);
  void ask_for_account(int rank);
  void take_account(int rank, Account account);
  void conclude_inquest(Nanoseconds now);
  std::vector<StalledTensor> stalled_tensors(const Inquest& inquest, Nanoseconds now) const;

  // -- The engine thread.
  struct Vigil {                    // what it waits for, beside descriptors
    Nanoseconds look_at = 0;        // a time to look for stalls, or at the end; 0: none
    Nanoseconds poll_after = kAny;  // time from now to ask the plane again
    static constexpr Nanoseconds kAny = -1;
  };
  void run_thread();
  Vigil drive_from_thread(std::vector<pollfd>& sockets);
  void notice_deaths(const std::vector<pollfd>& fds);

  // -- Tracing; with the progress lock held.
  void trace(const Operation& operation);
  void trace_alone(Operation& operation);
  void flush_traces(bool end);
  void take_traces(int peer, Bytes traces);
  void tell_tracing();
  void set_tracing(bool on);

  Status run_alone(Operation& operation);
  void notify_local_waiters();
  void set_timer(Nanoseconds after) const;
  bool wait_for_driver(const Operation& operation);
  std::string describe_peer(int rank) const;

  World world_;
  const EngineOptions options_;
  const Observer observer_;
  const ForkGuard fork_guard_;
  const MembersRef everybody_;
  UniqueFd timer_;  // wakes the engine thread for submissions that nobody waits for

  // Submissions, from any thread.
  mutable std::mutex submit_mutex_;
  std::unordered_map<OpKey, OperationRef, OpKeyHash> in_flight_;  // guarded by submit_mutex_
  std::vector<OperationRef> queue_;                               // guarded by submit_mutex_
  std::size_t queued_bytes_ = 0;                                  // guarded by submit_mutex_
  bool thread_called_ = false;                                    // guarded by submit_mutex_
  Status failure_;                                                // guarded by submit_mutex_
  Writer alone_traces_;                                           // guarded by submit_mutex_
  std::string place_;                                             // guarded by submit_mutex_
  std::map<std::uint32_t, MembersRef> sets_;                      // guarded by submit_mutex_
  std::map<std::uint32_t, std::int64_t> next_unnamed_;            // guarded by submit_mutex_

  // The state machine.
  std::mutex progress_;
  std::unique_ptr<Negotiator> negotiator_;  // rank 0 only; guarded by progress_, as all below
  std::unordered_map<OpKey, std::unique_ptr<CacheEntry>, OpKeyHash> cache_;
  std::unordered_map<std::uint32_t, CacheEntry*> cache_by_id_;
  std::unordered_map<OpKey, OperationRef, OpKeyHash> announced_;  // under their names
  std::unordered_map<std::uint64_t, Running> running_;            // by the work's number
  std::uint64_t next_work_ = 1;
  std::size_t waiting_ = 0;     // announced, not complete
  bool broken_ = false;         // everything has failed, for good
  Nanoseconds last_wait_ = 0;   // somebody has given this world up: until when to wait for the rest
  bool thread_needed_ = false;  // to go on where the driver leaves off
  std::vector<OperationRef> draining_;
  std::vector<OperationRef> finished_;  // complete, not yet told
  std::size_t finished_bytes_ = 0;
  Writer outgoing_;
  std::uint64_t carried_out_ = 0;  // the last batch of decisions
  Nanoseconds last_decision_ = 0;
  std::vector<pollfd> fds_;
  std::vector<std::byte> payload_;  // scratch of rank 0's own announcements
  int departures_told_ = 0;  // of rank 0: everybody has all decisions up to so many departures
  OperationRef joined_;      // this rank's join, while it lasts
  bool tracing_ = false;
  Nanoseconds last_flush_ = 0;          // of traces
  Writer traces_;                       // not yet sent to rank 0
  Nanoseconds last_done_ = 0;           // when the plane finished something last
  std::unique_ptr<Timeline> timeline_;  // of rank 0
  std::vector<bool> trace_ended_;       // of rank 0: by rank, whether all of its traces are here

  // Stalls.
  Inquest inquest_;
  Nanoseconds last_report_ = 0;
  StallClock negotiation_clock_{options_.stall};
  StallClock plane_clock_{options_.stall};
  Nanoseconds next_look_ = 0;
  Nanoseconds last_moved_ = 0;  // when the plane did something last
  Nanoseconds stirred_ = 0;     // when a step did anything last
  YieldTime yield_time_;
  Nanoseconds last_stand_in_ = 0;  // when this rank, having joined, helped others last
  Nanoseconds unheard_since_ = 0;  // a complaint that the coordinator has not answered; 0: none
  bool unheard_final_ = false;
  std::array<Request, 8> recent_;  // the last operations, for their labels
  std::size_t recent_count_ = 0;

  // Between threads.
  std::atomic<bool> stopping_{false};
  std::atomic<bool> tracing_alone_{false};
  std::atomic<int> dead_rank_{-1};
  std::atomic<bool> turned_away_{false};  // the engine thread was woken while a caller drove
  std::atomic<std::uint32_t> local_bell_{0};
  std::atomic<int> local_waiters_{0};
  std::atomic<bool> account_due_{false};  // `place_` is new

  // Given back when memory runs out, so that the end can be told.
  std::unique_ptr<std::byte[]> reserve_ = std::make_unique_for_overwrite<std::byte[]>(256 * 1024);
  Handing handing_;
  EventLog events_;
  Counters counters_;
  CompletionPool pool_{2};
  CompletionPool inspector_{1};  // calls the observer
  std::thread thread_;
};

}  // namespace khorovod
