"""What a rank brings to the meeting at ``init()`` and what it takes home, and what both sides of it share."""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from horovod.exceptions import InitError
from horovod.rendezvous.messages import ChannelError, Member, Message, Refusal

NONCE_BYTES = 16
M = TypeVar("M")


@dataclass(frozen=True)
class Invitation:
    """What a rank brings to the meeting."""

    rank: int
    size: int
    host: str
    job_id: str
    generation: int
    version: str
    plane: str
    """``auto``, ``shm``, ``tcp`` or ``mpi``: the last is for the tensors, ranks meet as with ``auto``"""
    timeout: float
    create_region: Callable[[], int]
    """Makes the shared region and returns its descriptor; ``OSError`` if this machine cannot."""
    region_bytes: int
    """What it is long."""
    nonce_offset: int
    """Where in the region the nonce goes."""


@dataclass
class World:
    """What a rank takes home. It owns the descriptors until the engine does."""

    members: list[Member]
    wake: int
    """This rank's eventfd."""
    watch: dict[int, int] = field(default_factory=dict)
    """For other ranks: a descriptor that becomes readable when the rank dies."""
    region: int | None = None
    eventfds: list[int] = field(default_factory=list)
    control: dict[int, int] = field(default_factory=dict)
    data: dict[int, int] = field(default_factory=dict)
    why_sockets: str = ""
    key: str = ""
    """Known to the ranks of this world alone."""

    def close(self) -> None:
        """Closes everything, when it comes to nothing."""
        owned = [self.wake, *self.watch.values(), *self.eventfds, *self.control.values(), *self.data.values()]
        for descriptor in owned if self.region is None else [*owned, self.region]:
            with suppress(OSError):
                os.close(descriptor)


class Deadline:
    """The one deadline of the whole meeting."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.001, self._end - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self._end


def address(invitation: Invitation) -> str:
    """The name under which rank 0 listens: a new one for every ``init()``."""
    return _name(invitation, f"init {invitation.generation}")


def rank_address(invitation: Invitation, rank: int) -> str:
    """The name that a rank has from its first ``init()`` on."""
    return _name(invitation, f"rank {rank}")


def _name(invitation: Invitation, what: str) -> str:
    # Everybody on the machine sees the names that are in use. From these nobody can tell the next ones.
    digest = hashlib.sha256(f"{invitation.job_id}\n{what}".encode()).hexdigest()
    return f"\0khorovod-{digest[:32]}"


def make_bell() -> int:
    """The eventfd that wakes a rank."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def read_nonce(invitation: Invitation, region: int) -> bytes:
    """Maps all of the region, as the engine will, and reads the nonce; ``OSError`` if there is no room."""
    with mmap.mmap(region, invitation.region_bytes, prot=mmap.PROT_READ) as memory:
        return memory[invitation.nonce_offset : invitation.nonce_offset + NONCE_BYTES]


def expect(kind: type[M], message: Message) -> M:
    """The message, if it is of this kind; rank 0's refusal becomes the error of this rank."""
    if isinstance(message, Refusal):
        raise InitError(message.reason)
    if not isinstance(message, kind):
        raise ChannelError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message
