"""Jobs of a few ranks for the fault tests: each rank is a process of its own that a test may hurt.

A rank runs :data:`PRELUDE` and then the test's code. Test and ranks talk through files: *flags*, which
either side raises and waits for, and the ranks' output. Whatever a test leaves running is killed by pid,
found by a mark in its environment (forked children bear it too).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.world import rank_environment

DEADLINE = 60.0
"""A guard against hangs on a loaded machine, not a measurement."""

PRELUDE = '''
import atexit, ctypes, gc, json, os, signal, sys, threading, time
from pathlib import Path
import numpy as np
import horovod.numpy as hvd
from horovod._core import runtime
from horovod import exceptions as errors

HERE = Path(__file__).parent
RANK, SIZE = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
LAST = SIZE - 1


def flag(name):
    """Raises a flag."""
    (HERE / name).touch()


def raised(name):
    """Whether a flag is up."""
    return (HERE / name).exists()


def await_flag(name):
    """Waits for a flag."""
    end = time.monotonic() + 50
    while not raised(name):
        assert time.monotonic() < end, f"no flag {name}"
        time.sleep(0.002)


def tell(**facts):
    """Says something to the test, as one line of JSON."""
    os.write(1, (json.dumps(facts) + "\\n").encode())


def tell_error(call, *args, **kwargs):
    """Calls, and tells what that raised."""
    try:
        call(*args, **kwargs)
    except BaseException as error:
        internal = isinstance(error, errors.HorovodInternalError)
        tell(error=type(error).__name__, internal=internal, message=str(error))
    else:
        tell(error=None)


def reduce_forever(count=1 << 20, limit=1e9):
    """Reduces large tensors, two ahead, until it fails; every result that comes is right."""
    step = 0
    pending = []
    while step < limit:
        tensor = np.full(count, RANK + step, dtype=np.float32)
        pending.append((step, hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"big.{step % 3}"), tensor))
        step += 1
        if len(pending) == 3:
            number, handle, tensor = pending.pop(0)
            result = hvd.synchronize(handle)
            expected = SIZE * number + SIZE * (SIZE - 1) // 2
            assert np.all(result == expected), (number, result, expected)
            if number == 3:
                flag(f"running.{RANK}")
    for _, handle, _ in pending:
        hvd.synchronize(handle)

'''

_BAD_WORDS = ("Fatal Python error", "nanobind", "terminate called", "Segmentation", "Exception ignored")


def until(condition: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    """Waits for ``condition``."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.005)


@dataclass
class Rank:
    """One process of a job."""

    number: int
    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def out(self) -> str:
        """What it has written to standard output."""
        return (self.directory / f"out.{self.number}").read_text()

    def err(self) -> str:
        """What it has written to standard error."""
        return (self.directory / f"err.{self.number}").read_text()

    def told(self) -> list[dict[str, Any]]:
        """What it has told the test."""
        return [json.loads(line) for line in self.out().splitlines() if line.startswith("{")]

    def wait(self, seconds: float = DEADLINE) -> int:
        """Waits for its end and gives its exit code, negative for a signal."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"rank {self.number} hangs\n{self.out()[-2000:]}\n{self.err()[-4000:]}"
            ) from None

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Sends it a signal."""
        self.process.send_signal(signum)

    def assert_quiet_exit(self) -> None:
        """It ends with exit code 0, and has complained of nothing."""
        code = self.wait()
        assert (code, self.err()) == (0, ""), self.out()[-2000:]

    def assert_no_crash(self) -> None:
        """It ends by itself; whatever it says, it is not the complaint of an interpreter or a C++ runtime."""
        code = self.wait()
        found = [word for word in _BAD_WORDS if word in self.err()]
        assert code >= 0, f"exit code {code}\n{self.err()[-4000:]}"
        assert not found, self.err()[-4000:]


@dataclass
class Job:
    """The ranks of one world."""

    directory: Path
    mark: str
    ranks: list[Rank] = field(default_factory=list)

    def __getitem__(self, rank: int) -> Rank:
        return self.ranks[rank]

    def others(self, victim: int) -> list[Rank]:
        """All ranks but one."""
        return [rank for rank in self.ranks if rank.number != victim % len(self.ranks)]

    def flag(self, name: str) -> None:
        """Raises a flag for the ranks."""
        (self.directory / name).touch()

    def await_flags(self, *names: str) -> None:
        """Waits until ranks have raised these flags; a rank that fails meanwhile is shown."""

        def up() -> bool:
            if all((self.directory / name).exists() for name in names):
                return True
            failed = [rank for rank in self.ranks if (rank.process.poll() or 0) > 0]
            assert not failed, f"rank {failed[0].number} failed:\n{failed[0].err()}"
            return False

        until(up, f"the flags {names}")

    def processes(self) -> list[int]:
        """Every living process of this job, with children of the ranks."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_ours(name)]

    def _is_ours(self, pid: str) -> bool:
        try:
            if self.mark.encode() not in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                return False
            return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False


Start = Callable[..., Job]
"""The fixture: ``start(size, code, env, before)``."""


@contextmanager
def job(
    directory: Path, size: int, code: str, env: Mapping[str, str] | None = None, before: str = ""
) -> Iterator[Job]:
    """Starts ``size`` ranks of ``code``, after ``before``; none of their processes outlives the block."""
    script = directory / "worker.py"
    script.write_text(before + PRELUDE + code)
    mark = uuid.uuid4().hex
    world = Job(directory, f"KHOROVOD_TEST_MARK={mark}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    own = {"KHOROVOD_TEST_MARK": mark, "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1"}
    own["HOROVOD_HOSTNAME"] = "testhost"
    try:
        for number in range(size):
            with (
                open(directory / f"out.{number}", "wb") as out,
                open(directory / f"err.{number}", "wb") as err,
            ):
                process = subprocess.Popen(
                    [sys.executable, str(script)],
                    env={**kept, **own, **rank_environment(number, size, "auto", mark), **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
            world.ranks.append(Rank(number, process, directory))
        yield world
    finally:
        for pid in world.processes():
            os.kill(pid, signal.SIGKILL)
        for rank in world.ranks:
            rank.process.wait(DEADLINE)
