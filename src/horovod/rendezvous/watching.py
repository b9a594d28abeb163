"""Watches ranks where the kernel gives no pidfds: the end of their connection, or of their process.

A forked child keeps its dead parent's connection open, so the process is looked at as well, a few times a
second, where it can be seen in /proc. The engine is told by a byte in a pipe, which stands for the pidfd.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_SECONDS = 0.25


class Watcher:
    """A thread that watches some ranks, for as long as the world lasts."""

    def __init__(self, ranks: Mapping[int, tuple[int, int]]) -> None:
        """``ranks`` has for each a connection, which is copied, and a pid."""
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None
        self._owned: list[int] = []
        self._alarms: dict[int, tuple[int, int]] = {}  # by rank: the ends of its pipe
        self._connections: dict[int, int] = {}  # by descriptor: the rank
        self._processes = {rank: (pid, _started(pid)) for rank, (_, pid) in ranks.items()}
        try:
            self._bell = self._own(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            for rank, (connection, _) in ranks.items():
                self._connections[self._own(os.dup(connection))] = rank
                reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                self._alarms[rank] = self._own(reading), self._own(writing)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Everything that was to be said on the connections has been said: watches from now on."""
        self._thread = threading.Thread(target=self._run, name="khorovod-watch", daemon=True)
        self._thread.start()

    def alarm(self, rank: int) -> int:
        """A copy of the descriptor that becomes readable when the rank has ended; the caller owns it."""
        return os.dup(self._alarms[rank][0])

    def close(self) -> None:
        """Stops watching. In a forked child: closes its copies."""
        if os.getpid() == self._owner and self._thread is not None:
            os.eventfd_write(self._bell, 1)
            self._thread.join()
        while self._owned:
            with suppress(OSError):
                os.close(self._owned.pop())

    def _own(self, descriptor: int) -> int:
        self._owned.append(descriptor)
        return descriptor

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for connection in self._connections:
            poll.register(connection, select.POLLIN)
        watched = set(self._processes)
        while watched:
            ended = {rank for rank in watched if _is_over(*self._processes[rank])}
            for descriptor, _ in poll.poll(0 if ended else _SECONDS * 1000):
                if descriptor == self._bell:
                    return
                poll.unregister(descriptor)  # nobody says anything here any more: this is its end
                ended.add(self._connections[descriptor])
            for rank in ended & watched:
                os.write(self._alarms[rank][1], b"x")
            watched -= ended


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started(pid: int) -> str:
    """When the process began, by which it is told from a later one; "" if it cannot be seen."""
    fields = _stat(pid) if pid > 0 else []
    return fields[19] if len(fields) > 19 else ""


def _is_over(pid: int, started: str) -> bool:
    if not started:
        return False
    fields = _stat(pid)
    return len(fields) < 20 or fields[19] != started or fields[0] in "ZX"
