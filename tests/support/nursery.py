"""Processes that are born with everything imported: forked by one that has imported it once.

To import TensorFlow takes a process seconds, on a busy machine ten times as many, and a world has several
processes. The nursery never uses what it imports, so it has no threads that a fork would lose. It ends with
the process that uses it, and its children end with it.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import frames
from tests.support.worker import die_with

ROOT = Path(__file__).resolve().parents[2]
STRICT = ("-W", "error", "-X", "faulthandler")
SECONDS = 100.0
"""For an import, on a busy machine: a guard against hangs."""

Prepare = Callable[[], None]
"""Imports frameworks, but not the package: that is the children's own affair."""


class Nursery:
    """The user's side."""

    def __init__(self, environment: Mapping[str, str], options: Sequence[str] = STRICT) -> None:
        self.prepared: frozenset[str] = frozenset()
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(SECONDS)
        with theirs:
            command = [sys.executable, *options, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=ROOT
            )

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What the function returns, called in the nursery."""
        frames.by_value(function)
        frames.send(self._connection, ("call", function, args))
        return frames.receive(self._connection)

    def fork(self, function: Callable[..., Any], *args: Any, given: Sequence[socket.socket] = ()) -> int:
        """The pid of a new child, which calls the function, with the sockets' descriptors last."""
        frames.send(self._connection, (len(given), function, args))
        for one in given:
            socket.send_fds(self._connection, [b"!"], [one.fileno()])
        return int(frames.receive(self._connection))

    def prepare(self, prepare: Prepare) -> None:
        """Calls it in the nursery, unless it has been."""
        if prepare.__qualname__ not in self.prepared:
            self.call(prepare)
            self.prepared |= {prepare.__qualname__}

    def close(self) -> None:
        """Ends it, and with it all that it has forked."""
        self._connection.close()
        self.process.kill()
        self.process.wait()


class Forked:
    """A child of a nursery, as ``subprocess`` would show it."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._descriptor = os.pidfd_open(pid)
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative of a signal; ``None`` while it runs."""
        if self._status is None and select.select([self._descriptor], [], [], 0)[0]:
            self._status = self._nursery.call(_reap, self.pid)
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


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _serve(connection: socket.socket) -> Callable[[], Any] | None:
    """Answers until the user is gone; returns in each child too, with what it is to do."""
    while True:
        try:
            verb, function, args = frames.receive(connection)
        except (EOFError, OSError):
            return None
        if verb == "call":
            frames.send(connection, function(*args))
            continue
        if len(os.listdir("/proc/self/task")) > 1:
            sys.exit("what was imported has started threads, which a fork would lose")
        descriptors = [socket.recv_fds(connection, 1, 1)[1][0] for _ in range(verb)]
        if (pid := os.fork()) == 0:
            return functools.partial(function, *args, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        frames.send(connection, pid)


def _main(descriptor: int, parent: int) -> None:
    die_with(parent)
    nursery = os.getpid()
    with socket.socket(fileno=descriptor) as connection:
        task = _serve(connection)
    if task is not None:
        die_with(nursery)
        task()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
