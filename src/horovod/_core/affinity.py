"""``HOROVOD_THREAD_AFFINITY``: on which CPU the engine's thread of this rank runs.

A thread starts with the affinity of the one that starts it, so the caller is pinned while the engine is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from horovod._core.log import logger

__all__ = ["cpu_of", "pinned"]


def cpu_of(cpus: Sequence[int], local_rank: int, local_size: int) -> int | None:
    """The CPU for a rank, by its place on its host; ``ValueError`` if there are too few for the host."""
    if not cpus:
        return None
    if len(cpus) < local_size:
        raise ValueError(
            f"HOROVOD_THREAD_AFFINITY names {len(cpus)} CPUs for {local_size} ranks on this host: one for"
            " each is needed; the engine's threads are not pinned"
        )
    return cpus[local_rank]


@contextmanager
def pinned(cpus: Sequence[int], local_rank: int, local_size: int) -> Iterator[None]:
    """Threads that are started here stay on this rank's CPU; what cannot be done is logged, as an error."""
    before = os.sched_getaffinity(0)
    try:
        cpu = cpu_of(cpus, local_rank, local_size)
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
    except ValueError as error:
        logger.error("%s", error)
    except OSError as error:
        logger.error(
            "HOROVOD_THREAD_AFFINITY: the engine's thread cannot run on CPU %s: %s", cpu, error.strerror
        )
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)
