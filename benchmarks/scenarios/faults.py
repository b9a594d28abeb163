"""Faults: how long until every survivor has its error, and until horovodrun and all its ranks are gone.

Every repetition is a job of its own: 3 ranks that reduce 1 MiB again and again. Median and worst count.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.peers.base import environment, importable
from benchmarks.peers.hvd import rank_variables
from benchmarks.results import Row
from benchmarks.session import Session, say

NAME = "faults"
SIZE = 3
REPETITIONS = 10
QUICK_REPETITIONS = 3
SECONDS = 60.0
LOST, ENDED, INTERRUPTED = "lost", "ended", "interrupted"
"""What is waited for: the survivors' errors, horovodrun's end, the end of everything."""


class JobFailed(Exception):
    """A job did not come to where it was to be hurt, or the end did not come."""


@dataclass(frozen=True)
class Case:
    """Who does what, and the plane."""

    what: str
    until: str
    victim: int = SIZE - 1
    deed: str = ""
    plane: str = "shm"


CASES = (
    *(
        Case(f"SIGKILL of {who}, {plane}", LOST, victim, plane=plane)
        for plane in ("shm", "tcp")
        for who, victim in (("a rank", SIZE - 1), ("the coordinator", 0))
    ),
    Case("os._exit(3) of a rank, shm", LOST, deed="os._exit"),
    Case("exit(0) of a rank, shm", LOST, deed="exit"),
    Case("an exception on a rank, shm", LOST, deed="raise"),
    Case("SIGKILL of a rank, until horovodrun ends", ENDED),
    Case("Ctrl-C of horovodrun, until all are gone", INTERRUPTED),
)


def run(session: Session) -> list[Row]:
    """Round after round, every case once."""
    if "hvd" not in session.peers:
        return []
    able = "ok" if importable("horovod.numpy") else "not installed"
    rows = [Row(NAME, "hvd", {"what": case.what, "until": case.until}, status=able) for case in CASES]
    for _ in range(QUICK_REPETITIONS if session.options.quick else REPETITIONS):
        for case, row in zip(CASES, rows, strict=True):
            if row.status == "ok":
                _attempt(case, row)
    return [finished for row in rows for finished in session.finish([row])]


def _attempt(case: Case, row: Row) -> None:
    try:
        row.rounds.append({"seconds": _measure(case)})
    except (JobFailed, OSError) as error:
        row.status, row.error = "failed", str(error)
        say(f"  {NAME} {case.what} failed: {error}")


def _measure(case: Case) -> float:
    with tempfile.TemporaryDirectory(prefix="khorovod-faults-") as directory:
        job = _Job(case, Path(directory))
        try:
            return job.lost() if case.until == LOST else job.ended()
        finally:
            job.kill()


class _Job:
    """The processes of one repetition: ranks, or horovodrun with its ranks."""

    def __init__(self, case: Case, directory: Path) -> None:
        self.case, self.directory = case, directory
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ranks: list[int] = []
        name = secrets.token_hex(8)
        if case.until == LOST:
            for rank in range(SIZE):
                deed = [case.deed] if case.deed and rank == case.victim else []
                self._start(_victim(directory, *deed), rank_variables(rank, SIZE, name))
        else:
            launcher = [sys.executable, "-m", "horovod.runner.cli", "-np", str(SIZE)]
            self._start([*launcher, *_victim(directory)], {})
        try:
            self._await(self._all_reduce, "the first reductions")
            # By their descriptors, so that a pid that is used again cannot mislead.
            self.ranks = [os.pidfd_open(self._noted(f"pid.{rank}")) for rank in self._unharmed()]
        except BaseException:
            self.kill()
            raise

    def _start(self, command: list[str], variables: dict[str, str]) -> None:
        own = {"HOROVOD_CPU_OPERATIONS": self.case.plane, **variables}
        log = self.directory / f"log.{len(self.processes)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                env={**environment(), **own},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.processes.append(process)

    def lost(self) -> float:
        """Hurt one rank; seconds until the last survivor has its error."""
        if self.case.deed:
            self._await(lambda: (self.directory / "deed").exists(), "the deed")
            began = self._noted("deed")
        else:
            began = time.monotonic_ns()
            self.processes[self.case.victim].kill()
        survivors = [f"error.{rank}" for rank in range(SIZE) if rank != self.case.victim]
        self._await(lambda: all((self.directory / name).exists() for name in survivors), "the errors")
        return (max(map(self._noted, survivors)) - began) / 1e9

    def ended(self) -> float:
        """Hurt one rank or interrupt the launcher; seconds until the launcher and all ranks are gone."""
        began = time.monotonic_ns()
        if self.case.until == INTERRUPTED:
            self.processes[0].send_signal(signal.SIGINT)
        else:
            signal.pidfd_send_signal(self.ranks[self.case.victim], signal.SIGKILL)
        try:
            self.processes[0].wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise JobFailed("horovodrun did not end") from None
        for rank in self.ranks:
            if not select.select([rank], [], [], SECONDS)[0]:
                raise JobFailed("a rank did not end")
        return (time.monotonic_ns() - began) / 1e9

    def kill(self) -> None:
        """End what is left: by pid or descriptor, and the launcher so that it ends its own."""
        for rank in self.ranks:
            os.close(rank)
        self.ranks = []
        for process in self.processes:
            process.kill()
            process.wait()

    def _unharmed(self) -> list[int]:
        return [] if self.case.until == LOST else list(range(SIZE))

    def _all_reduce(self) -> bool:
        return all((self.directory / f"pid.{rank}").exists() for rank in range(SIZE))

    def _noted(self, name: str) -> int:
        return int((self.directory / name).read_text())

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > end:
                logs = [path.read_text(errors="replace")[-500:] for path in self.directory.glob("log.*")]
                raise JobFailed("\n".join([f"waited in vain for {what}", *logs]))
            time.sleep(0.001)


def _victim(directory: Path, *deed: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.victims", str(directory), *deed]
