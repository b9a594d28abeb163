"""What keeps other processes from being this rank, from ``init()`` to ``shutdown()``.

Names of abstract sockets, which the kernel gives away once. One is of this ``init()``: two processes that
come as the same rank. The other is of the job: a child with its parent's environment begins to count at one,
and would wait for a world that is long over. Nothing is read from either. The second one listens, so that
others can ask the kernel who has it, and says no more.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from horovod.exceptions import InitError
from horovod.rendezvous.invitation import Deadline, Invitation, address, rank_address

_OWN_CHILD_SECONDS = 0.5


class Closeable(Protocol):
    """What a claim keeps open."""

    def close(self) -> None:
        """Lets go of it."""


class Claim:
    """While it is open, nobody else can be this rank; what must live as long may be kept with it."""

    def __init__(self, invitation: Invitation, deadline: Deadline) -> None:
        self._kept: list[Closeable] = []
        try:
            self._take_this_init(invitation)
            self._take_this_job(invitation, deadline)
        except BaseException:
            self.close()
            raise

    def keep(self, thing: Closeable) -> None:
        """Closes it when the claim is given up."""
        self._kept.append(thing)

    def close(self) -> None:
        """Gives the rank up. In a forked child: closes its copies."""
        while self._kept:
            self._kept.pop().close()

    def _take_this_init(self, invitation: Invitation) -> None:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.keep(claim)
        try:
            claim.bind(f"{address(invitation)}-{invitation.rank}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise _taken(invitation, holder(rank_address(invitation, invitation.rank))) from None

    def _take_this_job(self, invitation: Invitation, deadline: Deadline) -> None:
        name = rank_address(invitation, invitation.rank)
        began = time.monotonic()
        while True:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                claim.bind(name)
                claim.listen(8)
                return self.keep(claim)
            except OSError as error:
                claim.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            pid = holder(name)
            if pid is not None and pid in _ancestors():
                raise _taken(invitation, pid)
            # Kept open by a child that was forked behind Python's back: nobody is this rank.
            if pid is not None and not _lives(pid):
                return None
            if pid == os.getpid() and time.monotonic() - began > _OWN_CHILD_SECONDS:
                return None
            # Another process may be about to leave this rank: ranks may be given out anew.
            if deadline.passed():
                raise _taken(invitation, pid)
            time.sleep(0.01)


def holder(name: str) -> int | None:
    """The process that has a job's name; ``None`` if nobody has, or it cannot be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.setblocking(False)  # nobody answers: the queue may be full
        try:
            asking.connect(name)
        except OSError:
            return None
        pid: int = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid or None


def impostor(invitation: Invitation, rank: int, pid: int) -> int | None:
    """The living process that has the rank's name, if it is not the one that says so."""
    owner = holder(rank_address(invitation, rank))
    return owner if owner is not None and pid not in (0, owner) and _lives(owner) else None


def _taken(invitation: Invitation, pid: int | None) -> InitError:
    who = "Another process" if pid is None else f"Another process (pid {pid})"
    return InitError(
        f"{who} is rank {invitation.rank} of this job already. Do not start two processes with the same "
        "rank, and do not call init() in a child process that inherits HOROVOD_RANK (or what else your "
        "launcher sets) from a rank."
    )


def _lives(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
