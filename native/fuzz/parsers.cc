// Targets that read messages.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/chrome_trace.h"
#include "engine/negotiator.h"
#include "engine/tcp_link.h"
#include "engine/trace.h"
#include "fuzz/targets.h"
#include "tests/check.h"

namespace khorovod::fuzz {

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"link", run_link, link_seeds, true},
      {"coordinator", run_coordinator, coordinator_seeds, true},
      {"decisions", run_decisions, decision_seeds, true},
      {"traces", run_traces, trace_seeds, true},
      {"engine", run_engine, engine_seeds, false},
      {"plane", run_plane, plane_seeds, false},
  };
  return all;
}

// The bytes are what rank 0 sends to rank 1 of three; rank 2 says nothing.
void run_link(Bytes input) {
  std::vector<UniqueFd> mine(3);
  std::vector<UniqueFd> theirs(3);
  for (const std::size_t peer : {0, 2}) {
    int pair[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    mine[peer] = UniqueFd(pair[0]);
    theirs[peer] = UniqueFd(pair[1]);
  }
  const UniqueFd wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  TcpLink link(1, 3, std::move(mine), {"rank 0", "rank 1", "rank 2"}, wake.get(), {});
  std::size_t taken = 0;
  const auto receiver = [&](int peer, Bytes message) {
    CHECK_EQ(peer, 0);
    taken += message.size();
    Decisions decisions;
    Reader in(message);
    return read_decisions(in, decisions);
  };
  while (!input.empty() && link.failure().ok()) {
    const ssize_t n =
        ::send(theirs[0].get(), input.data(), std::min<std::size_t>(input.size(), 7000),
               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) input = input.subspan(static_cast<std::size_t>(n));
    if (!link.receive(receiver) && n <= 0) break;  // a goodbye: nobody reads what follows
  }
  theirs[0].reset();
  while (link.failure().ok() && link.receive(receiver)) {
  }
  CHECK(link.departed() < 3);
}

// Three ranks of four may say anything; what is decided is understood by everybody.
void run_coordinator(Bytes input) {
  Negotiator book(kRanks, {});
  for_each_message(input, [&, broken = false](int peer, Bytes message) mutable {
    if (broken) return;  // the world ends with the first message that makes no sense
    std::uint64_t acknowledged = 0;
    const bool sane = read_message(
        message, acknowledged,
        [&](const Announcement& announcement) { return book.announce(peer, announcement, 1); },
        [](Bytes) {},
        [&](const Complaints& complaints) {
          for (const Complaint& item : complaints.items) book.waits_for({item.set, item.name});
        },
        [](const Account&) {});
    if (sane) book.acknowledge(peer, acknowledged);
    broken = !sane;
    if (broken || !book.anything_ready()) return;
    const Decisions decisions = book.decide();
    for (int rank = 0; rank < kRanks; ++rank) {
      Writer out;
      write_decisions(out, decisions, rank);
      Reader in(out.view());
      Decisions understood;
      CHECK(read_decisions(in, understood));
    }
    book.waiting_since(1, 2);
  });
}

void run_decisions(Bytes input) {
  Reader in(input);
  Decisions decisions;
  if (!read_decisions(in, decisions)) return;
  CHECK(in.done());
  std::size_t entries = 0;
  for (const Plan& plan : decisions.plans) entries += plan.entries.size();
  CHECK(entries + decisions.plans.size() + decisions.retired.size() <= input.size());
}

void run_traces(Bytes input) {
  ChromeTrace picture(0, 0, true);
  Reader in(input);
  Trace trace;
  while (!in.done() && read_trace(in, trace)) {
    Writer out;
    write_trace(out, trace);
    Reader again(out.view());
    Trace same;
    CHECK(read_trace(again, same) && same == trace);
    picture.add(1, trace);
    picture.text().clear();
  }
}

}  // namespace khorovod::fuzz
