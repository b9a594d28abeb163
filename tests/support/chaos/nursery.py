"""Forks ranks and launchers from a process that has imported everything: a job starts in milliseconds.

The nursery is the parent of all its children and adopts what they leave behind (it is a subreaper), so a
process of a finished job cannot get lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from tests.support import nursery
from tests.support.chaos import remains
from tests.support.world import clean_environment

MARK = "KHOROVOD_TEST_MARK"
_SUBREAPER = 36


@dataclass(frozen=True)
class Birth:
    """A child to come: a Python module and its arguments, and what is its own."""

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    name: str
    """Its output goes to ``out.<name>`` and ``err.<name>`` in the directory."""


class Nursery(nursery.Nursery):
    """Of ranks and launchers: ``with Nursery() as nursery: nursery.bear(...)``."""

    def __init__(self) -> None:
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self._ends: dict[int, int] = {}
        name, _, value = self.mark.partition("=")
        super().__init__({**clean_environment(), "OMP_NUM_THREADS": "1", name: value}, options=())
        self.call(_make_ready)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self.close()

    def bear(self, birth: Birth) -> int:
        """Starts a child; its pid."""
        return self.fork(_become, birth)

    def ends(self) -> dict[int, int]:
        """The exit codes of the children that have ended so far, negative for a signal."""
        self._ends.update(self.call(_reap))
        return self._ends

    def alive(self) -> list[int]:
        """Every process that the nursery or one of its children has started and that lives."""
        return [pid for pid in remains.processes(self.mark) if pid != self.process.pid]

    def clear(self) -> None:
        """Kills all of them."""
        while found := self.alive():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.ends()
        self._ends.clear()


def _make_ready() -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    # What children need; not the programs themselves, which each of them runs as its own.
    import horovod.runner.supervisor  # noqa: F401
    from tests.support.chaos import deeds, operations  # noqa: F401


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
