"""What ranks and their launcher say to each other at the launcher's desk, and the ranks' side of it.

The desk is an abstract unix socket of ``horovodrun``. A rank calls with one request per connection: it checks
in after ``init()``, or asks how another rank ended. Both are a help, never a need: without a desk, or with a
launcher that is slow, stopped or gone, the rank goes on without an answer.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Annotated

import msgspec

from horovod.rendezvous.addresses import launcher_address
from horovod.rendezvous.messages import ChannelError, Packets

__all__ = ["Answer", "CheckIn", "Ended", "HowEnded", "Request", "check_in", "cpu_ranges", "how_ended"]

CHECK_IN_SECONDS = 0.1
"""Longest time that init() gives a launcher whose queue of callers is full."""
_RETRY_SECONDS = 0.005

Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class CheckIn(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """A rank is up: where, on which CPUs, and what moves its bytes. No answer."""

    rank: Number
    pid: Number
    host: Text
    cpus: Text
    plane: Text


class HowEnded(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """How did this rank end, which ``asker`` has lost? The answer, :class:`Ended`, comes when it has."""

    rank: Number
    asker: Number


class Ended(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What the launcher knows of a rank's end; fits after "died: "."""

    how: Text


Request = CheckIn | HowEnded
Answer = Ended
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def check_in(job_id: str, facts: CheckIn) -> bool:
    """Tells the launcher that this rank is up; False if there is none, or it has no time."""
    try:
        with closing(_call(job_id, time.monotonic() + CHECK_IN_SECONDS)) as launcher:
            launcher.send(facts)
    except (OSError, ChannelError):
        return False
    return True


def how_ended(job_id: str, rank: int, timeout: float, *, asker: int) -> str | None:
    """How ``rank`` ended, as soon as the launcher knows; None if it does not within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    try:
        with closing(_call(job_id, deadline)) as launcher:
            launcher.send(HowEnded(rank, asker))
            answer, descriptors = launcher.receive(max(0.001, deadline - time.monotonic()))
            for descriptor in descriptors:
                os.close(descriptor)
            return answer.how
    except (OSError, ChannelError):  # TimeoutError is an OSError
        return None


def _call(job_id: str, deadline: float) -> Packets[Answer]:
    """A connection to the launcher, which the kernel says belongs to the same user."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        caller.setblocking(False)
        while True:
            try:
                caller.connect(launcher_address(job_id))
                return Packets(caller, _answers)
            except BlockingIOError:  # its queue is full
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
    except BaseException:
        caller.close()
        raise


def cpu_ranges(cpus: Iterable[int]) -> str:
    """``{0, 1, 2, 3, 8}`` as ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
