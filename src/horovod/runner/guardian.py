"""The guardian: a small process between launcher and rank that makes sure that nothing outlives the job.

It is forked by the launcher (no exec, so it costs about a millisecond), becomes subreaper, starts the rank in
a session of its own, and then only waits. It talks over two pipes:

* the *lifeline* from the launcher: a byte is a signal to deliver to the rank; its end means that the launcher
  has died, however that happened, and the rank with everything below it has to go.
* the *status* pipe to the launcher: one line per event, see :func:`parse_status`.

When the rank has ended, whatever it left running is ended too. The guardian exits when it has no descendant
left. It must not know the job, the other ranks or the policy, and it writes nothing to the terminal.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from horovod.runner import processes

__all__ = ["GuardianSpec", "StatusEvent", "guard", "parse_status"]

ORPHAN_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL when the launcher has died."""
LEFTOVER_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for what a rank has left running."""
GIVE_UP = 5.0
"""Seconds after SIGKILL; a process that still exists then hangs in the kernel and cannot be ended."""
_KILL_PASS = 0.02

# Signals that a user's program may handle without ending: for the rank alone. The others go to its whole
# process group, as a terminal would do it.
_RANK_ONLY = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class GuardianSpec:
    """All that a guardian needs. The descriptors are its own, but ``foreign_fds`` are the launcher's."""

    argv: Sequence[str]
    env: Mapping[str, str]
    launcher_pid: int
    lifeline: int
    status: int
    stdout: int
    stderr: int
    foreign_fds: Sequence[int]
    ignored_signals: frozenset[int]
    """Signals that were ignored when the launcher started (``nohup``): the rank ignores them too."""


@dataclass(frozen=True)
class StatusEvent:
    """A line of the status pipe: ``started`` (pid), ``exited`` (wait status), ``exec-failed`` (errno)."""

    kind: str
    value: int
    at: float = 0.0


def parse_status(line: bytes) -> StatusEvent:
    """Read a line of the status pipe."""
    kind, value, at = line.decode("ascii").split()
    return StatusEvent(kind, int(value), float(at))


def guard(spec: GuardianSpec) -> NoReturn:
    """Be the guardian; called in the forked child, with all signals blocked. Never returns."""
    code = 1
    try:
        for fd in spec.foreign_fds:
            os.close(fd)
        _Guardian(spec).run()
        code = 0
    finally:
        os._exit(code)


class _Guardian:
    def __init__(self, spec: GuardianSpec) -> None:
        self._spec = spec
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._rank_ended = False
        os.setsid()
        self._let_go_of_the_terminal()
        processes.become_subreaper()
        self._wakeup = self._listen_to_signals()
        launcher_lives = processes.die_with_parent(signal.SIGTERM, spec.launcher_pid)
        self._pid = self._start_rank()
        os.close(spec.stdout)
        os.close(spec.stderr)
        self._tell("started", self._pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if not launcher_lives:
            self._end_everything(ORPHAN_GRACE)

    def _let_go_of_the_terminal(self) -> None:
        """Whoever reads the launcher's output must see its end when the launcher is gone."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd, inheritable=True)
        os.close(null)

    def _listen_to_signals(self) -> int:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(signum, lambda *_: None)
        for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *_RANK_ONLY):
            signal.signal(signum, signal.SIG_IGN)
        return read_end

    def _start_rank(self) -> int:
        # Of the exec pipe only the error of a failed exec comes out; a successful one closes it.
        report_end, exec_end = os.pipe()
        guardian = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_rank(guardian, exec_end)
        os.close(exec_end)
        with open(report_end, "rb") as report:
            error = report.read()
        if error:
            self._tell("exec-failed", int(error))
        return pid

    def _become_rank(self, guardian: int, exec_end: int) -> NoReturn:
        spec = self._spec
        error = 0
        try:
            os.setsid()
            if processes.die_with_parent(signal.SIGKILL, guardian):
                os.dup2(spec.stdout, 1)
                os.dup2(spec.stderr, 2)
                signal.set_wakeup_fd(-1)
                for signum in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
                    ignored = signum in spec.ignored_signals
                    with contextlib.suppress(OSError):  # the C library keeps some for itself
                        signal.signal(signum, signal.SIG_IGN if ignored else signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                os.execve(spec.argv[0], list(spec.argv), dict(spec.env))
        except OSError as problem:
            error = problem.errno or 1
        finally:
            os.write(exec_end, str(error).encode())
            os._exit(126)

    def _tell(self, kind: str, value: int) -> None:
        # CLOCK_MONOTONIC is the same for all processes of a host, so the launcher can compare the ranks'
        # times.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._spec.status, f"{kind} {value} {time.monotonic()!r}\n".encode())

    def run(self) -> None:
        """Wait, deliver, report, clean up; return when nothing is left to guard."""
        with selectors.PollSelector() as selector:
            selector.register(self._wakeup, selectors.EVENT_READ, self._on_signals)
            selector.register(self._spec.lifeline, selectors.EVENT_READ, self._on_lifeline)
            self._selector = selector
            while self._reap():
                for key, _ in selector.select(self._timeout()):
                    key.data()
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._kill_everything()
                if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
                    return

    def _timeout(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _on_signals(self) -> None:
        if signal.SIGTERM in os.read(
            self._wakeup, 4096
        ):  # from the kernel (the launcher died) or an operator
            self._end_everything(ORPHAN_GRACE)

    def _on_lifeline(self) -> None:
        orders = os.read(self._spec.lifeline, 4096)
        if not orders:
            self._selector.unregister(self._spec.lifeline)
            self._end_everything(ORPHAN_GRACE)
        for signum in orders:
            if signum == signal.SIGKILL:
                self._kill_everything()
            elif not self._rank_ended:
                self._deliver(signum)

    def _deliver(self, signum: int) -> None:
        """To the rank; its pid and group cannot be anybody else's, because it has not been reaped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.kill if signum in _RANK_ONLY else os.killpg)(self._pid, signum)
            if signum == signal.SIGTERM:
                os.killpg(self._pid, signal.SIGCONT)

    def _end_everything(self, grace: float) -> None:
        if self._kill_at is None:
            processes.signal_all(processes.descendants(os.getpid()), signal.SIGTERM)
            self._kill_at = time.monotonic() + grace

    def _kill_everything(self) -> None:
        """One pass; passes follow each other until nothing is left, since processes may fork meanwhile."""
        processes.signal_all(processes.descendants(os.getpid()), signal.SIGKILL)
        now = time.monotonic()
        self._kill_at = now + _KILL_PASS
        self._give_up_at = self._give_up_at or now + GIVE_UP

    def _reap(self) -> bool:
        """Collect the dead, the rank and orphans alike. False when no child, so no descendant, is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            if pid == self._pid and not self._rank_ended:
                self._rank_ended = True
                self._tell("exited", status)
        if self._rank_ended:
            self._end_everything(LEFTOVER_GRACE)
        return True
