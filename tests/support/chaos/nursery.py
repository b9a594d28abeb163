"""Forks ranks and launchers from a process that has imported everything: a job starts in milliseconds.

The nursery is the parent of all its children and adopts what they leave behind (it is a subreaper), so a
process of a finished job cannot get lost. It ends with the process that uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import frames
from tests.support.chaos import remains
from tests.support.world import clean_environment

ROOT = Path(__file__).resolve().parents[3]
MARK = "KHOROVOD_TEST_MARK"
_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1


@dataclass(frozen=True)
class Birth:
    """A child to come: a Python module and its arguments, and what is its own."""

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    name: str
    """Its output goes to ``out.<name>`` and ``err.<name>`` in the directory."""


class Nursery:
    """The parent's side: ``with Nursery() as nursery: nursery.bear(...)``."""

    def __init__(self) -> None:
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self._ends: dict[int, int] = {}
        mine, theirs = socket.socketpair()
        name, _, value = self.mark.partition("=")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.chaos.nursery", str(theirs.fileno()), str(os.getpid())],
                env={**clean_environment(), "OMP_NUM_THREADS": "1", name: value},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
        self._connection = mine
        mine.settimeout(60)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def bear(self, birth: Birth) -> int:
        """Starts a child; its pid."""
        return int(self._ask(birth))

    def ends(self) -> dict[int, int]:
        """The exit codes of the children that have ended so far, negative for a signal."""
        self._ends.update(self._ask("ends"))
        return self._ends

    def alive(self) -> list[int]:
        """Every process that the nursery or one of its children has started and that lives."""
        return [pid for pid in remains.processes(self.mark) if pid != self._process.pid]

    def clear(self) -> None:
        """Kills all of them."""
        while found := self.alive():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.ends()
        self._ends.clear()

    def _ask(self, request: Any) -> Any:
        frames.send(self._connection, request)
        return frames.receive(self._connection)


def _serve(connection: socket.socket) -> Birth | None:
    """Answers until the user is gone; returns in each child too, with what it is to be."""
    while True:
        try:
            request = frames.receive(connection)
        except (EOFError, OSError):
            return None
        if isinstance(request, Birth):
            pid = os.fork()
            if pid == 0:
                return request
            frames.send(connection, pid)
        else:
            frames.send(connection, _reap())


def _reap() -> dict[int, int]:
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def _become(birth: Birth) -> None:
    os.chdir(birth.directory)
    for descriptor, stream in ((1, "out"), (2, "err")):
        opened = os.open(f"{stream}.{birth.name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(birth.environment)
    sys.argv = [birth.module, *birth.arguments]
    runpy.run_module(birth.module, run_name="__main__", alter_sys=True)


def main(descriptor: int, parent: int) -> None:
    """Serves the process at the other end of ``descriptor``."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1)
    libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("whoever wanted children is gone")
    # What children need, imported once; not the programs themselves, which each of them runs as its own.
    import horovod.runner.supervisor  # noqa: F401
    from tests.support.chaos import deeds, operations  # noqa: F401

    with socket.socket(fileno=descriptor) as connection:
        birth = _serve(connection)
    if birth is not None:
        libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        _become(birth)


if __name__ == "__main__":
    # As the module that the other side knows, not as __main__: its messages are pickled.
    from tests.support.chaos import nursery

    nursery.main(int(sys.argv[1]), int(sys.argv[2]))
