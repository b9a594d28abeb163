"""Carries a job through: starts the ranks, passes their output on, does what the policy decides, reports.

One thread, one selector, no polling. Knows no particular launcher and no option of the command line.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.runner import policy, processes
from horovod.runner.cgroup import Cgroup
from horovod.runner.desk import Desk
from horovod.runner.launch import Launcher, Worker
from horovod.runner.output import Sink, rank_directory
from horovod.runner.rank import Rank, Stream
from horovod.runner.report import RankOutcome, blame, describe_end, exit_code, failure_report, own_end

__all__ = ["Supervisor", "View"]

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
DRAIN_GRACE = 1.0
"""Seconds of silence after which a pipe that is still open is given up, when all ranks are gone."""
BLOCKED_GRACE = 2.0
"""Seconds that an interrupted job waits for a reader of its output who does not read."""


@dataclass(frozen=True)
class View:
    """Where and how the ranks' output is shown."""

    out: Sink
    err: Sink
    timestamp: bool = False
    directory: Path | None = None
    """Also write each rank's output to files under this directory."""
    verbose: bool = False

    def say(self, text: str) -> None:
        """The launcher's own word."""
        self.err.write(f"horovodrun: {text}\n".encode())


class Supervisor:
    """Runs one job to its end. Use it once."""

    def __init__(self, launcher: Launcher, view: View, desk: Desk | None = None) -> None:
        self._launcher = launcher
        self._view = view
        self._desk = desk
        self._sinks = {view.out, view.err}
        self._ranks: list[Rank] = []
        self._interrupts: list[policy.Interrupt] = []
        self._passed: list[int] = []
        self._sent: list[policy.Interrupt] = []
        self._heard_at = 0.0
        self._oom_before = 0
        self._has_warned_of_files = False
        self._selector = selectors.PollSelector()

    def run(self, workers: Sequence[Worker]) -> int:
        """Start the workers, see them through, and return the exit code of the job."""
        self._oom_before = Cgroup().oom_kills()
        started_at = time.monotonic()
        # Orphans: what a killed guardian leaves behind.
        with processes.adopting_orphans(), self._selector, self._listening_to_signals():
            for worker in workers:
                self._start(worker)
            # Only now: a signal that came before is waiting, and the guardians are there to act on it.
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if self._desk is not None:
                self._desk.serve(self._selector)
            self._see_through()
            if self._desk is not None:
                self._desk.finish()
            self._wind_down()
            code = self._conclude(started_at)
            self._empty_sinks()
            self._tell_of_lost_output()
            self._empty_sinks()
        return code

    # -- starting

    @contextlib.contextmanager
    def _listening_to_signals(self) -> Iterator[None]:
        """Handlers that note a signal, and a descriptor that wakes the selector; undone at the end."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        heard = [s for s in (*ENDING_SIGNALS, *PASSED_SIGNALS) if signal.getsignal(s) != signal.SIG_IGN]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
        before = {signum: signal.signal(signum, self._note_signal) for signum in heard}
        wakeup_before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._selector.register(read_end, selectors.EVENT_READ, lambda: os.read(read_end, 4096))
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for signum, handler in before.items():
                # Who is asked to end and does so must not lose its exit code to an impatient third Ctrl-C.
                signal.signal(signum, signal.SIG_IGN if self._interrupts else handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(read_end)
            os.close(write_end)

    def _note_signal(self, signum: int, _frame: object) -> None:
        if signum in PASSED_SIGNALS:
            self._passed.append(signum)
        else:
            self._interrupts.append(policy.Interrupt(signum, time.monotonic()))

    def _start(self, worker: Worker) -> None:
        channels = self._launcher.start(worker)
        number = worker.slot.rank
        directory = None
        if self._view.directory is not None:
            directory = rank_directory(self._view.directory, number, worker.slot.size)
        streams = [
            Stream(
                fd,
                sink,
                number,
                name,
                timestamp=self._view.timestamp,
                file=directory and directory / name,
                warn=self._warn_of_files,
            )
            for fd, sink, name in (
                (channels.stdout, self._view.out, "stdout"),
                (channels.stderr, self._view.err, "stderr"),
            )
        ]
        rank = Rank(worker, channels, streams[0], streams[1])
        self._ranks.append(rank)
        self._selector.register(channels.status, selectors.EVENT_READ, lambda: self._on_status(rank))
        for stream in streams:
            self._listen(stream)

    # -- running

    def _see_through(self) -> None:
        """Until every rank has ended."""
        while True:
            now = time.monotonic()
            decision = policy.decide(self._state(), now)
            if decision.action is policy.Action.FINISH:
                return
            if decision.action is policy.Action.SIGNAL:
                self._send_to_all(decision.signum, decision.reason, now)
            else:
                self._wait(decision.wake_at)
            while self._passed:
                signum = self._passed.pop(0)
                for rank in self._ranks:
                    rank.send(signum)

    def _state(self) -> policy.JobState:
        return policy.JobState(
            alive=sum(rank.wait_status is None for rank in self._ranks),
            first_failure_at=min((rank.ended_at for rank in self._ranks if rank.failed), default=None),
            interrupts=self._interrupts,
            sent=self._sent,
        )

    def _send_to_all(self, signum: int, reason: str, now: float) -> None:
        name = signal.Signals(signum).name
        if self._view.verbose or (self._sent and self._interrupts):
            self._view.say(f"{reason}: sending {name} to the ranks that still run")
        self._sent.append(policy.Interrupt(signum, now))
        for rank in self._ranks:
            # A rank that has ended may have left processes behind, for which its guardian still waits.
            if rank.wait_status is None or signum == signal.SIGKILL:
                rank.send(signum)

    def _on_status(self, rank: Rank) -> None:
        gone = rank.read_status(time.monotonic())
        if self._desk is not None and rank.wait_status is not None:
            code = os.waitstatus_to_exitcode(rank.wait_status)
            self._desk.tell_end(rank.number, describe_end(code, self._oom_kills()))
        if not gone:
            return
        self._selector.unregister(rank.channels.status)
        rank.let_go()
        if rank.guardian_lost:
            _kill_orphans_of(rank)

    # -- output

    def _listen(self, stream: Stream) -> None:
        self._selector.register(stream.fd, selectors.EVENT_READ, lambda: self._on_output(stream))

    def _on_output(self, stream: Stream) -> None:
        self._heard_at = time.monotonic()
        if stream.read_some():
            return
        self._selector.unregister(stream.fd)
        stream.close()

    def _warn_of_files(self, text: str) -> None:
        """Once: when a disk is full, every file of every rank meets it."""
        if not self._has_warned_of_files:
            self._has_warned_of_files = True
            self._view.say(text)

    def _tell_of_lost_output(self) -> None:
        problem, self._view.out.problem = self._view.out.problem, None
        if problem is not None:
            self._view.say(f"standard output is lost from here on: {problem}; the job goes on")

    def _wait(self, until: float | None) -> None:
        """Until something happens, or the time ``until``; do what is to be done about it."""
        self._tell_of_lost_output()
        for sink in self._sinks:
            self._attend(sink)
        timeout = None if until is None else max(0.0, until - time.monotonic())
        # What is signalled before select() wakes it, too: its byte waits in the wake-up pipe.
        for key, _ in self._selector.select(timeout):
            act: Callable[[], object] = key.data
            act()

    def _attend(self, sink: Sink) -> None:
        """Write when there is something to write; listen to ranks only while there is room for it."""
        registered = self._selector.get_map()
        if (sink.pending > 0) != (sink.fd in registered):
            if sink.pending:
                self._selector.register(sink.fd, selectors.EVENT_WRITE, sink.flush_some)
            else:
                self._selector.unregister(sink.fd)
        if sink.full != sink.holding:
            sink.holding = sink.full
            for stream in self._open_streams():
                if stream.sink is sink and sink.holding:
                    self._selector.unregister(stream.fd)
                elif stream.sink is sink:
                    self._listen(stream)

    def _open_streams(self) -> list[Stream]:
        return [stream for rank in self._ranks for stream in (rank.stdout, rank.stderr) if stream.open]

    # -- ending

    def _wind_down(self) -> None:
        """Until the guardians have ended what the ranks left running, and all output has been read."""
        interrupted = len(self._interrupts)
        while any(rank.guarded for rank in self._ranks):
            self._wait(None)  # ends: a guardian gives up on processes that cannot be killed
            if len(self._interrupts) > interrupted:
                for rank in self._ranks:
                    rank.send(signal.SIGKILL)
        self._heard_at = time.monotonic()
        while streams := self._open_streams():
            held_up = any(stream.sink.holding for stream in streams)
            if not held_up and time.monotonic() - self._heard_at > DRAIN_GRACE:
                break
            self._wait(None if held_up and not self._interrupts else time.monotonic() + DRAIN_GRACE)
            if self._interrupts and held_up and time.monotonic() - self._heard_at > BLOCKED_GRACE:
                for stream in streams:
                    stream.sink.drop()
                break
        for stream in self._open_streams():
            stream.close()
        for rank in self._ranks:
            if rank.guardian_lost:
                _kill_orphans_of(rank)

    def _oom_kills(self) -> int:
        """During the job."""
        return Cgroup().oom_kills() - self._oom_before

    def _conclude(self, started_at: float) -> int:
        """Say how it went, and the exit code."""
        bereaved = self._desk.bereaved if self._desk is not None else ()
        outcomes = [rank.outcome(bereaved=rank.number in bereaved) for rank in self._ranks]
        stopped_at = self._sent[0].at if self._sent else None
        blamed = blame(outcomes, stopped_at, frozenset(sent.signum for sent in self._sent))
        if self._interrupts and not _came_first(blamed, self._interrupts[0]):
            signum = self._interrupts[0].signum
            own = own_end(outcomes) if signum != signal.SIGINT else None
            how = f"; rank {own.rank} ended with exit code {own.code}" if own is not None else ""
            self._view.say(f"interrupted by {signal.Signals(signum).name}; all ranks have ended{how}")
            return own.code if own is not None else 128 + signum
        if blamed is None:
            return 0
        report = failure_report(blamed, outcomes, started_at=started_at, oom_kills=self._oom_kills())
        self._view.err.write("".join(line + "\n" for line in report).encode("utf-8", "backslashreplace"))
        return exit_code(blamed.code)

    def _empty_sinks(self) -> None:
        """As any program, wait for a slow reader; but not when the user wants to leave."""
        leaving_at = time.monotonic() + BLOCKED_GRACE if self._interrupts else None
        while any(sink.pending for sink in self._sinks):
            self._wait(leaving_at)
            if self._interrupts and leaving_at is None:
                leaving_at = time.monotonic()
            if leaving_at is not None and time.monotonic() >= leaving_at:
                return


def _came_first(blamed: RankOutcome | None, interrupt: policy.Interrupt) -> bool:
    return blamed is not None and blamed.at < interrupt.at


def _kill_orphans_of(rank: Rank) -> None:
    """What a killed guardian left behind has become ours; its environment tells whose it was."""
    marks = [f"{name}={rank.worker.env.get(name, '')}" for name in ("HOROVOD_JOB_ID", "HOROVOD_RANK")]
    orphans = [
        pid
        for pid in processes.descendants(os.getpid())
        if all(processes.has_in_environment(pid, mark) for mark in marks)
    ]
    processes.signal_all(orphans, signal.SIGKILL)
