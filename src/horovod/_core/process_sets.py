"""Process sets: groups of ranks that do collective operations among themselves.

``init(process_sets=[...])`` registers sets from the start; ``add_process_set`` and ``remove_process_set``
change them while the job runs, if ``init(process_sets="dynamic")`` or ``HOROVOD_DYNAMIC_PROCESS_SETS=1`` said
so. Every rank registers every set, members or not, in the same order.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from horovod._core import runtime
from horovod.exceptions import HorovodInternalError, InitError

if TYPE_CHECKING:
    from horovod import _native

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """A set of ranks. Registered with :func:`add_process_set` or ``init(process_sets=...)``.

    ``ranks_or_comm`` are ranks in any order, or an mpi4py communicator. ``process_set_id`` is ``None`` while
    the set is not registered. Two objects are equal only if they are the same one.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        if hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
            return
        ranks = list(ranks_or_comm)
        if not all(isinstance(rank, int) or hasattr(rank, "__index__") for rank in ranks):
            raise ValueError(f"The ranks of a process set must be integers, not {ranks}.")
        self.ranks = sorted(int(rank) for rank in ranks)

    def size(self) -> int | None:
        """How many ranks are in the set; ``None`` if it is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's number within the set; ``None`` if the set is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        me = runtime.identity().rank
        if me not in self.ranks:
            raise ValueError(f"Rank {me} is not in process set {self.process_set_id}.")
        return self.ranks.index(me)

    def included(self) -> bool | None:
        """Whether this process is in the set; ``None`` if its ranks are not known yet."""
        return None if self.ranks is None else runtime.identity().rank in self.ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


global_process_set = ProcessSet([])
"""All ranks; known from ``init()`` on."""
global_process_set.process_set_id = 0
global_process_set.ranks = None

_registered: weakref.WeakSet[ProcessSet] = weakref.WeakSet()


def open_registry(size: int) -> None:
    """A world begins."""
    global_process_set.ranks = list(range(size))


def close_registry() -> None:
    """A world ends: its sets mean nothing any more."""
    global_process_set.ranks = None
    for process_set in list(_registered):
        process_set.process_set_id = None
    _registered.clear()


def check_ranks(process_set: ProcessSet, size: int) -> list[int]:
    """The set's ranks, if they are ranks of a world of ``size``."""
    if process_set.ranks is None:
        raise NotImplementedError(
            "Process sets by MPI communicator are not available; give the ranks: ProcessSet([0, 1])."
        )
    ranks = process_set.ranks
    if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= size:
        raise ValueError(
            f"The ranks of a process set must be different numbers from 0 to {size - 1}, not {ranks}."
        )
    return ranks


def register_static(engine: _native.Engine, process_sets: Sequence[ProcessSet], size: int) -> None:
    """Registers the sets that were given to ``init()``; ids in their order, from 1."""
    known: list[list[int]] = [list(range(size))]
    for process_set in process_sets:
        ranks = check_ranks(process_set, size)
        if ranks in known:
            raise ValueError(
                f"init(process_sets=...) has the ranks {ranks} twice"
                + (" (all ranks are always a set)." if ranks == known[0] else ".")
            )
        known.append(ranks)
    try:
        ids = engine.add_process_sets(known[1:])
    except HorovodInternalError as error:
        raise InitError(f"init(process_sets=...) must be the same on all ranks. {error}") from error
    for process_set, number in zip(process_sets, ids, strict=True):
        _adopt(process_set, number)


def map_to_registered(engine: _native.Engine, process_sets: Sequence[ProcessSet], size: int) -> None:
    """A second ``init()``: gives the objects the ids of the sets that exist already."""
    existing = {tuple(ranks): number for number, ranks in engine.process_sets().items()}
    for process_set in process_sets:
        number = existing.get(tuple(check_ranks(process_set, size)))
        if number is None:
            raise ValueError(
                f"init() was called again with a process set that is not registered: {process_set.ranks}. "
                "Use add_process_set()."
            )
        _adopt(process_set, number)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a set; returns when every rank, member or not, has called it with the same ranks."""
    running = runtime.current()
    if not running.dynamic_process_sets:
        raise ValueError(
            "Process sets can be added only after init(process_sets='dynamic'), or with "
            "HOROVOD_DYNAMIC_PROCESS_SETS=1 in the environment of every rank."
        )
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = check_ranks(process_set, running.identity.size)
    for number, existing in running.engine.process_sets().items():
        if existing == ranks:
            raise ValueError(f"There is a process set with the ranks {ranks} already; its id is {number}.")
    (number,) = running.engine.add_process_sets([ranks])
    _adopt(process_set, number)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set; returns when every rank has called it. ``False`` if the set is not registered, or is
    that of all ranks. Operations that are pending in it fail. It may be added again."""
    running = runtime.current()
    if not running.dynamic_process_sets:
        raise ValueError(
            "Process sets can be removed only after init(process_sets='dynamic'), or with "
            "HOROVOD_DYNAMIC_PROCESS_SETS=1 in the environment of every rank."
        )
    number = process_set.process_set_id
    if not number or number not in running.engine.process_sets():
        return False
    running.engine.remove_process_set(number)
    for known in [known for known in _registered if known.process_set_id == number]:
        known.process_set_id = None
        _registered.discard(known)
    return True


def ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of all sets, by id."""
    return runtime.current().engine.process_sets()


def _adopt(process_set: ProcessSet, number: int) -> None:
    process_set.process_set_id = number
    _registered.add(process_set)
