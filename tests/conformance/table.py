"""Runs a table of calls in the workers, and checks all results in the test process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.conformance import oracle
from tests.conformance.calls import Array, Call
from tests.conformance.frontends import frontend_of
from tests.support.outcomes import Raised
from tests.support.world import Workers

Outcome = list[Array] | Raised | None
Sets = Sequence[tuple[int, ...]]

PATIENCE = 20.0
DEADLINE = 60.0
MOST_PROBLEMS = 40


def prove(
    world: Workers,
    frontend: str,
    calls: Sequence[Call],
    *,
    orders: Sequence[Sequence[int]] | None = None,
    sets: Sets = (),
) -> None:
    """All calls, made by all ranks (in this order, or each rank in its own), give what the oracle says."""
    assert len({call.label for call in calls}) == len(calls), "two calls have one label"
    check(calls, world.run(perform, frontend, calls, orders, sets, deadline=DEADLINE))


def perform(
    frontend: str, calls: Sequence[Call], orders: Sequence[Sequence[int]] | None = None, sets: Sets = ()
) -> list[Outcome]:
    """In a worker: makes the calls, waits for those that did not, and returns all results."""
    with process_sets(frontend, sets) as registered:
        return perform_in(frontend, calls, registered, orders)


@contextmanager
def process_sets(frontend: str, sets: Sets) -> Iterator[dict[tuple[int, ...], Any]]:
    """In a worker: dynamic process sets, by members, for a while."""
    hvd = frontend_of(frontend).hvd
    registered = {}
    try:
        for members in sets:
            registered[members] = hvd.add_process_set(list(members))
        yield registered
    finally:
        for process_set in registered.values():
            assert hvd.remove_process_set(process_set), "a process set could not be removed"


def perform_in(
    frontend: str,
    calls: Sequence[Call],
    registered: dict[tuple[int, ...], Any],
    orders: Sequence[Sequence[int]] | None = None,
) -> list[Outcome]:
    """In a worker: as ``perform``, with process sets that exist already."""
    front = frontend_of(frontend)
    rank = front.hvd.rank()
    outcomes: list[Outcome] = [None] * len(calls)
    pending = {}
    order = range(len(calls)) if orders is None else orders[rank]
    with _watch(rank) as now:
        for index in order:
            call = calls[index]
            if rank not in call.ranks(front.hvd.size()):
                continue
            now[0] = call.label
            try:
                finish = front.start(call, rank, None if call.members is None else registered[call.members])
                if call.waits:
                    outcomes[index] = finish()
                else:
                    pending[index] = finish
            except Exception as error:
                outcomes[index] = raised(error)
        for index, finish in pending.items():
            now[0] = f"{calls[index].label} (synchronize)"
            try:
                outcomes[index] = finish()
            except Exception as error:
                outcomes[index] = raised(error)
    return outcomes


def raised(error: BaseException) -> Raised:
    """An exception as data."""
    return Raised(tuple(kind.__name__ for kind in type(error).__mro__), str(error))


@contextmanager
def _watch(rank: int) -> Iterator[list[str]]:
    """A place for what is being done, which is said on stderr if it lasts."""
    now = [""]

    def tell() -> None:
        print(f"rank {rank} is still in: {now[0]}", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield now
    finally:
        timer.cancel()


def check(calls: Sequence[Call], outcomes: Sequence[Sequence[Outcome]]) -> None:
    """Every rank has the results of every call; else all calls are named that differ."""
    problems = [
        f"{call.label}: rank {rank}: {text}"
        for index, call in enumerate(calls)
        for rank, text in _problems_of(call, [by_rank[index] for by_rank in outcomes])
    ]
    more = [f"... and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    assert not problems, "\n".join([f"{len(problems)} problems", *problems[:MOST_PROBLEMS], *more])


def _problems_of(call: Call, outcomes: Sequence[Outcome]) -> Iterator[tuple[int, str]]:
    size = len(outcomes)
    for rank, (got, wanted) in enumerate(zip(outcomes, oracle.expected(call, size), strict=True)):
        if isinstance(got, Raised):
            yield rank, f"{got.classes[0]}: {got.message}"
        elif wanted is None or got is None:
            if got is not wanted:
                yield rank, f"a result {got} where {wanted} was expected"
        elif len(got) != len(wanted):
            yield rank, f"{len(got)} results instead of {len(wanted)}"
        else:
            if len(call.ranks(size)) == 1:  # alone, a NaN may stay what it was
                got, wanted = [[oracle.one_nan(a) for a in arrays] for arrays in (got, wanted)]
            for position, pair in enumerate(zip(got, wanted, strict=True)):
                if text := oracle.difference(*pair):
                    yield rank, f"result {position}: {text}"
