"""Worlds that lose a rank, again and again; arguments: JOB PLANE ROUNDS MEMBER.

Members 0 and 1 live through all rounds. In each of them a fresh third process joins and dies amidst a
collective; the two get an error that names it, shut down, and make a world of their own in the same
processes. MEMBER is 0 or 1, or ``guest.<round>``. Who is which rank changes from round to round.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import numpy as np

import horovod.numpy as hvd
from horovod.exceptions import PeerLostError
from tests.support.chaos import remains
from tests.support.world import rank_environment

GUEST = 2
WARM = 20
"""The round after which nothing may grow any more."""


def main(job: str, plane: str, rounds: int, member: str) -> None:
    """Plays one member; a lasting one prints what it held before and after, as a line of JSON."""
    if member.startswith("guest."):
        be_guest(job, plane, int(member.partition(".")[2]))
        return
    before = {}
    for number in range(rounds):
        lose_one(job, plane, number, int(member))
        if number == WARM:
            before = resources()
    print(json.dumps({"rounds": rounds, "before": before, "after": resources()}))


def be_guest(job: str, plane: str, number: int) -> None:
    """Joins a world, and dies while it reduces."""
    _join(job, plane, number, GUEST, 3)
    hvd.allreduce(np.ones(1 << 16), name="until the end")  # whoever takes part in it has the pids
    timer = threading.Timer(0.002 * (number % 7), os.kill, (os.getpid(), signal.SIGKILL))
    timer.start()
    while True:
        hvd.allreduce(np.ones(1 << 16), name="until the end")


def lose_one(job: str, plane: str, number: int, member: int) -> None:
    """A world of three that loses its guest, then one of two."""
    pids = _join(job, plane, number, member, 3)
    guest = (GUEST + number) % 3
    message = _reduce_until_lost()
    assert f"rank {guest} (host testhost, pid {pids[guest]})" in message, message
    hvd.shutdown()
    _join(job, plane, number, member, 2)
    result = hvd.allreduce(np.arange(5000.0) * (hvd.rank() + 1), op=hvd.Sum, name="after")
    assert np.array_equal(result, np.arange(5000.0) * 3)
    hvd.shutdown()


def _reduce_until_lost() -> str:
    while True:
        try:
            hvd.allreduce(np.ones(1 << 16), name="until the end")
        except PeerLostError as error:
            return str(error)


def _join(job: str, plane: str, number: int, member: int, size: int) -> list[int]:
    """Enters the round's world of this size; the pids of all."""
    rank = (member + number) % size
    os.environ.update(rank_environment(rank, size, plane, f"{job}-{number}-{size}"))
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    return [int(pid) for pid in hvd.allgather(np.array([os.getpid()]), name="pids")]


def resources() -> dict[str, int]:
    """What this process holds outside of a world."""
    # A joined thread has run to its end, but the kernel may still list it for a moment.
    end = time.monotonic() + 5
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < end:
        time.sleep(0.005)
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    with open("/proc/self/maps") as maps:
        mappings = len(maps.readlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "regions": len(remains.regions()),
        "mappings": mappings,
        "resident KiB": resident,
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
