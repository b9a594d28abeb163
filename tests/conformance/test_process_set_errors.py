"""Process sets that cannot be, and calls that a process set refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conformance.frontends import frontend_of
from tests.conformance.marks import DYNAMIC, every_frontend, on_worlds
from tests.conformance.table import process_sets
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

WRONG_SETS: dict[str, list[int]] = {
    "a duplicate": [0, 1],
    "a duplicate in another order": [1, 0],
    "the world": [0, 1, 2],
    "out of range": [0, 3],
    "negative": [-1, 0],
    "a rank twice": [0, 0, 1],
    "empty": [],
}


@every_frontend
@on_worlds(3, **DYNAMIC)
@pytest.mark.parametrize("case", WRONG_SETS)
def test_sets_that_cannot_be_added(world: Workers, frontend: str, case: str) -> None:
    assert_raised(world.run(_add_wrong, frontend, WRONG_SETS[case]), "ValueError")


def _add_wrong(frontend: str, ranks: list[int]) -> Raised | None:
    hvd = frontend_of(frontend).hvd
    with process_sets(frontend, [(0, 1)]):
        outcome = error_of(hvd.add_process_set, ranks)
        hvd.barrier()
    with process_sets(frontend, [(1, 2)]) as sets:
        assert sets[1, 2].process_set_id == 1, "a refused set took an id"
    return outcome


@every_frontend
@on_worlds(2)
def test_adding_needs_the_dynamic_setting(world: Workers, frontend: str) -> None:
    outcomes = world.run(_add_in_static_world, frontend)
    assert_raised(outcomes, "ValueError", "HOROVOD_DYNAMIC_PROCESS_SETS")


def _add_in_static_world(frontend: str) -> Raised | None:
    hvd = frontend_of(frontend).hvd
    return error_of(hvd.add_process_set, [0])


WRONG_STATIC: dict[str, list[list[list[int]]]] = {
    "other members": [[[0, 1]], [[0, 1]], [[0, 2]]],
    "other numbers": [[[0, 1]], [[0, 1], [1, 2]], [[0, 1]]],
    "other order": [[[0, 1], [1, 2]], [[1, 2], [0, 1]], [[0, 1], [1, 2]]],
    "out of range": [[[0, 3]]] * 3,
    "a rank twice": [[[0, 0]]] * 3,
    "duplicates": [[[0, 1], [1, 0]]] * 3,
    "the world": [[[0, 1, 2]]] * 3,
}


@every_frontend
@pytest.mark.parametrize("case", WRONG_STATIC)
def test_static_sets_that_init_refuses(
    start_workers: Callable[..., Workers], frontend: str, case: str
) -> None:
    outcomes = start_workers(3).run(_init_wrong, frontend, WRONG_STATIC[case])
    assert_raised(outcomes, "ValueError")


def _init_wrong(frontend: str, sets: list[list[list[int]]]) -> Raised | None:
    hvd = frontend_of(frontend).hvd
    mine = [hvd.ProcessSet(ranks) for ranks in sets[int(os.environ["HOROVOD_RANK"])]]
    outcome = error_of(hvd.init, process_sets=mine)
    if hvd.is_initialized():  # as after duplicates: a clean list is all it takes
        hvd.shutdown()
    return outcome


@every_frontend
@on_worlds(3, **DYNAMIC)
def test_errors_at_the_call(world: Workers, frontend: str) -> None:
    """Who is no member, a root that is none, a set that is gone; nothing is submitted."""
    results = world.run(_errors_at_the_call, frontend)
    assert_raised([result["not a member"] for result in results[2:]], "ValueError")
    assert_raised([result["root"] for result in results[:2]], "ValueError", "2")
    assert_raised([result["removed"] for result in results], "TypeError")
    assert_raised([result["unregistered"] for result in results], "TypeError")
    assert_raised([result["adasum"] for result in results[:2]], "NotImplementedError", "Adasum")


def _errors_at_the_call(frontend: str) -> dict[str, Raised | None]:
    front = frontend_of(frontend)
    hvd, tensor = front.hvd, front.tensor(np.ones(3))
    outcomes: dict[str, Raised | None] = {}
    with process_sets(frontend, [(0, 1)]) as sets:
        pair = sets[0, 1]
        if hvd.rank() == 2:
            outcomes["not a member"] = error_of(hvd.allreduce, tensor, process_set=pair)
        else:
            outcomes["root"] = error_of(hvd.broadcast, tensor, 2, process_set=pair)
            outcomes["adasum"] = error_of(hvd.allreduce, tensor, op=hvd.Adasum, process_set=pair)
            total = front.array(hvd.allreduce(tensor, op=hvd.Sum, process_set=pair))
            assert total.tolist() == [2.0] * 3
    outcomes["removed"] = error_of(hvd.allreduce, tensor, process_set=pair)
    outcomes["unregistered"] = error_of(hvd.allgather, tensor, process_set=hvd.ProcessSet([0]))
    assert front.array(hvd.allreduce(tensor, op=hvd.Sum)).tolist() == [3.0] * 3
    return outcomes


EVERY_CALL: dict[str, Callable[[Any, Any, Any], Any]] = {
    "allreduce": lambda hvd, t, s: hvd.allreduce(t, process_set=s),
    "allreduce_": lambda hvd, t, s: hvd.allreduce_(t, process_set=s),
    "allreduce_async": lambda hvd, t, s: hvd.allreduce_async(t, process_set=s),
    "allreduce_async_": lambda hvd, t, s: hvd.allreduce_async_(t, process_set=s),
    "grouped_allreduce": lambda hvd, t, s: hvd.grouped_allreduce([t], process_set=s),
    "grouped_allreduce_": lambda hvd, t, s: hvd.grouped_allreduce_([t], process_set=s),
    "grouped_allreduce_async": lambda hvd, t, s: hvd.grouped_allreduce_async([t], process_set=s),
    "grouped_allreduce_async_": lambda hvd, t, s: hvd.grouped_allreduce_async_([t], process_set=s),
    "allgather": lambda hvd, t, s: hvd.allgather(t, process_set=s),
    "allgather_async": lambda hvd, t, s: hvd.allgather_async(t, process_set=s),
    "grouped_allgather": lambda hvd, t, s: hvd.grouped_allgather([t], process_set=s),
    "grouped_allgather_async": lambda hvd, t, s: hvd.grouped_allgather_async([t], process_set=s),
    "broadcast": lambda hvd, t, s: hvd.broadcast(t, 0, process_set=s),
    "broadcast_": lambda hvd, t, s: hvd.broadcast_(t, 0, process_set=s),
    "broadcast_async": lambda hvd, t, s: hvd.broadcast_async(t, 0, process_set=s),
    "broadcast_async_": lambda hvd, t, s: hvd.broadcast_async_(t, 0, process_set=s),
    "alltoall": lambda hvd, t, s: hvd.alltoall(t, process_set=s),
    "alltoall_async": lambda hvd, t, s: hvd.alltoall_async(t, process_set=s),
    "reducescatter": lambda hvd, t, s: hvd.reducescatter(t, process_set=s),
    "reducescatter_async": lambda hvd, t, s: hvd.reducescatter_async(t, process_set=s),
    "grouped_reducescatter": lambda hvd, t, s: hvd.grouped_reducescatter([t], process_set=s),
    "grouped_reducescatter_async": lambda hvd, t, s: hvd.grouped_reducescatter_async([t], process_set=s),
    "barrier": lambda hvd, t, s: hvd.barrier(process_set=s),  # noqa: ARG005
    "broadcast_object": lambda hvd, t, s: hvd.broadcast_object(t, 0, process_set=s),
    "allgather_object": lambda hvd, t, s: hvd.allgather_object(t, process_set=s),
}


@every_frontend
@on_worlds(2, **DYNAMIC)
@pytest.mark.parametrize("call", EVERY_CALL)
def test_only_members_may_call(world: Workers, frontend: str, call: str) -> None:
    outcomes = world.run(_as_an_outsider, frontend, EVERY_CALL[call])
    assert_raised(outcomes[1:], "ValueError")


def _as_an_outsider(frontend: str, call: Any) -> Raised | None:
    front = frontend_of(frontend)
    with process_sets(frontend, [(0,)]) as sets:
        outcome = None
        if front.hvd.rank() == 1:
            outcome = error_of(call, front.hvd, front.tensor(np.ones(4)), sets[0,])
        front.hvd.barrier()
    return outcome
