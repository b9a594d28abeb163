"""Worker processes that are born with frameworks imported: forked by a process that has imported them once.

To import TensorFlow takes a process seconds, on a busy machine ten times as many, and a world has several
processes. The nursery itself has never used what it imports, so it has no threads that a fork would lose.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.support import frames
from tests.support.worker import die_with, serve

SECONDS = 100.0
"""For an import, on a busy machine: a guard against hangs."""

Prepare = Callable[[], None]
"""Imports frameworks, but not the package: that is the workers' own affair."""


class Forked:
    """A process that the nursery has forked, as ``subprocess`` would show it."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._descriptor = os.pidfd_open(pid)
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative of a signal; ``None`` while it runs."""
        if self._status is None and select.select([self._descriptor], [], [], 0)[0]:
            self._status = self._nursery.reap(self.pid)
            os.close(self._descriptor)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended."""
        if self._status is None and not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """To the process, if it still runs."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)


class Nursery:
    """The process that imports and forks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._prepared: set[str] = set()
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-W", "error", "-X", "faulthandler", "-m", __name__),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @property
    def prepared(self) -> frozenset[str]:
        """What processes have that are forked now."""
        return frozenset(self._prepared)

    def prepare(self, prepare: Prepare) -> None:
        """Calls it in the nursery, unless it has been."""
        if prepare.__qualname__ not in self._prepared:
            frames.by_value(prepare)
            self._ask("prepare", prepare)
            self._prepared.add(prepare.__qualname__)

    def fork(self, environment: Mapping[str, str], connection: socket.socket) -> Forked:
        """A new worker, which serves the other end of the connection."""
        frames.send(self._connection, ("fork", dict(environment)))
        socket.send_fds(self._connection, [b"!"], [connection.fileno()])
        return Forked(self, frames.receive(self._connection))

    def reap(self, pid: int) -> int:
        """The exit status of a worker that has ended, which is forgotten."""
        return int(self._ask("reap", pid))

    def close(self) -> None:
        """Ends it, and with it all that it has forked."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, *request: Any) -> Any:
        frames.send(self._connection, request)
        return frames.receive(self._connection)


def _main(descriptor: int, parent: int) -> None:
    """Forks on demand. Returns in the nursery when the test process is gone, in a worker when all is done."""
    die_with(parent)
    nursery = os.getpid()
    with socket.socket(fileno=descriptor) as connection:
        while True:
            try:
                request, argument = frames.receive(connection)
            except (EOFError, OSError):
                return
            if request == "prepare":
                frames.send(connection, argument())
            elif request == "reap":
                frames.send(connection, os.waitstatus_to_exitcode(os.waitpid(argument, 0)[1]))
            else:
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
                if pid := os.fork():
                    os.close(descriptors[0])
                    frames.send(connection, pid)
                else:
                    break
    die_with(nursery)
    os.environ.clear()
    os.environ.update(argument)
    if "numpy" in sys.modules:  # Python's own numbers differ after a fork
        sys.modules["numpy"].random.seed()
    with socket.socket(fileno=descriptors[0]) as served:
        serve(served)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
