"""Process sets: every operation in overlapping sets, and their life."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance.calls import AVERAGE, MAX, SUM, Array, Call, Tensor
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import DYNAMIC, every_frontend, on_worlds
from tests.conformance.table import DEADLINE, Outcome, Sets, check, perform_in, process_sets, prove
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import PLANES, Workers

SETS = {
    2: ((0,), (1,)),
    3: ((0, 1), (1, 2), (0, 2), (1,)),
    4: ((0, 1), (1, 2, 3), (0, 3), (2,), (0, 1, 2)),
    7: ((0, 2, 4, 6), (1, 3, 5), (5, 6), (0, 1, 2, 3, 4, 5), (3,), (2, 3, 6)),
}
every_plane = pytest.mark.parametrize("plane", PLANES)


def everything_in(members: tuple[int, ...], size: int) -> list[Call]:
    """Every operation, tiny and not, in one set."""
    tag = f"{members}"
    rows = tuple(3 + rank for rank in range(size))
    count = len(members)
    splits = tuple(tuple((rank + i) % 4 for i in range(count)) for rank in range(size))
    to_all = tuple(sum(row) + 1 for row in splits)
    calls = []
    for rest in ((), (700,)):
        plain = Tensor("float32", (7, *rest), seed=1)
        ints = Tensor("int16", (5, *rest), seed=2)
        uneven = Tensor("float64", (0, *rest), rows, seed=3)
        split = Tensor("bfloat16", (0, *rest), to_all, seed=4)
        even = Tensor("bool", (2 * count, *rest), seed=5)
        size_tag = f"{tag} {rest}"
        calls += [
            Call(f"{size_tag} allreduce", "allreduce", (plain,)),
            Call(f"{size_tag} allreduce max", "allreduce", (ints,), op=MAX),
            Call(f"{size_tag} allreduce int average", "allreduce", (ints,), op=AVERAGE, prescale=3.0),
            Call(f"{size_tag} compressed", "allreduce", (plain,), op=SUM, compression="bf16"),
            Call(f"{size_tag} grouped allreduce", "grouped_allreduce", (plain, ints, plain), op=SUM),
            Call(f"{size_tag} allgather", "allgather", (uneven,)),
            Call(f"{size_tag} grouped allgather", "grouped_allgather", (uneven, plain)),
            Call(f"{size_tag} alltoall", "alltoall", (split,), splits=splits),
            Call(f"{size_tag} even alltoall", "alltoall", (even,)),
            Call(f"{size_tag} reducescatter", "reducescatter", (plain,)),
            Call(f"{size_tag} grouped reducescatter", "grouped_reducescatter", (plain, ints), op=SUM),
            *(Call(f"{size_tag} broadcast {r}", "broadcast", (plain,), root=r) for r in members),
        ]
    return [replace(call, members=members) for call in calls]


@every_frontend
@on_worlds(2, 3, 4, 7, **DYNAMIC)
def test_every_operation_in_dynamic_sets(world: Workers, frontend: str) -> None:
    """Set after set, and then all operations of all sets in flight at once."""
    size = len(world.pids)
    calls = [call for members in SETS[size] for call in everything_in(members, size)]
    prove(world, frontend, calls, sets=SETS[size])
    at_once = [
        replace(call, form="_async", name=call.label.replace(str(call.members), "")) for call in calls
    ]  # the same names in all sets
    orders = [np.random.default_rng(rank).permutation(len(calls)).tolist() for rank in range(size)]
    prove(world, frontend, at_once, orders=orders, sets=SETS[size])


@every_frontend
@every_plane
@pytest.mark.parametrize("size", [1, 3, 4])
def test_every_operation_in_static_sets(
    start_workers: Callable[..., Workers], frontend: str, size: int, plane: str
) -> None:
    sets = SETS.get(size, ())
    calls = [call for members in sets for call in everything_in(members, size)]
    calls += everything_in(tuple(range(size)), size)
    calls = [replace(c, members=None) if c.members == tuple(range(size)) else c for c in calls]
    results = start_workers(size, plane).run(_with_static_sets, frontend, sets, calls, deadline=DEADLINE)
    check(calls, [outcomes for outcomes, _ in results])
    wanted = [
        (i + 1, list(members), len(members), members.index(rank) if rank in members else None)
        for rank in range(size)
        for i, members in enumerate(sets)
    ]
    assert [facts for _, of_rank in results for facts in of_rank] == wanted


def _with_static_sets(frontend: str, sets: Sets, calls: list[Call]) -> tuple[list[Outcome], list[Any]]:
    hvd = frontend_of(frontend).hvd
    # In an order of its own on each rank of each set's ranks: that is nobody's business.
    given = [hvd.ProcessSet(np.random.default_rng().permutation(members).tolist()) for members in sets]
    hvd.init(process_sets=given)
    rank = hvd.rank()
    facts = []
    for one, members in zip(given, sets, strict=True):
        assert one.included() == (rank in members)
        mine = one.rank() if one.included() else None
        facts.append((one.process_set_id, list(one.ranks), one.size(), mine))
    assert list(hvd.global_process_set.ranks) == list(range(hvd.size()))
    assert hvd.global_process_set.process_set_id == 0
    outcomes = perform_in(frontend, calls, dict(zip(sets, given, strict=True)))
    hvd.init(process_sets=[again := hvd.ProcessSet(list(s)) for s in sets])
    assert not sets or again.process_set_id == len(sets), "a second init() maps to the ids there are"
    return outcomes, facts


@every_frontend
@on_worlds(3, 4, **DYNAMIC)
def test_ids(world: Workers, frontend: str) -> None:
    """They come in order, freed ones are given again, and all ranks know the same."""
    world.run(_ids, frontend)


def _ids(frontend: str) -> None:
    hvd = frontend_of(frontend).hvd
    first, second = hvd.add_process_set([0, 1]), hvd.add_process_set(hvd.ProcessSet([2, 1]))
    assert (first.process_set_id, second.process_set_id) == (1, 2)
    assert list(second.ranks) == [1, 2]
    assert hvd.remove_process_set(first) is True
    assert first.process_set_id is None
    assert hvd.remove_process_set(first) is False
    third = hvd.add_process_set([0, 2])
    assert third.process_set_id == 1
    again = hvd.add_process_set(first)
    assert again.process_set_id == 3
    assert again is first
    assert [hvd.remove_process_set(s) for s in (first, second, third)] == [True] * 3
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
    for round_ in range(5):
        singles = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
        assert [s.process_set_id for s in singles] == list(range(1, hvd.size() + 1)), round_
        for one in reversed(singles):
            assert hvd.remove_process_set(one)


@every_frontend
@on_worlds(3, **DYNAMIC)
def test_what_a_set_knows(world: Workers, frontend: str) -> None:
    world.run(_what_a_set_knows, frontend)


def _what_a_set_knows(frontend: str) -> None:
    hvd = frontend_of(frontend).hvd
    one = hvd.ProcessSet([2, 0])
    assert (one.process_set_id, one.size(), one.rank()) == (None, None, None)
    hvd.add_process_set(one)
    assert str(one) == f"ProcessSet(process_set_id={one.process_set_id}, ranks=[0, 2], mpi_comm=None)"
    assert one.size() == 2
    assert one.included() == (hvd.rank() != 1)
    if hvd.rank() == 1:
        assert_raised([error_of(one.rank)], "ValueError")
    else:
        assert one.rank() == hvd.rank() // 2
    assert one != hvd.ProcessSet([0, 2])
    assert hvd.remove_process_set(one)
    assert_raised([error_of(hvd.ProcessSet, ["a"]), error_of(hvd.ProcessSet, [0.5])], "ValueError")


@every_frontend
@every_plane
def test_init_dynamic(start_workers: Callable[..., Workers], frontend: str, plane: str) -> None:
    assert start_workers(2, plane).run(_init_dynamic, frontend) == [1, 1]


def _init_dynamic(frontend: str) -> int:
    hvd = frontend_of(frontend).hvd
    hvd.init(process_sets="Dynamic")
    return int(hvd.add_process_set([1]).process_set_id)


@every_frontend
@on_worlds(3, **DYNAMIC)
def test_barrier_of_a_set(world: Workers, frontend: str) -> None:
    """The others neither take part nor wait."""
    world.run(_barriers, frontend)


def _barriers(frontend: str) -> None:
    hvd = frontend_of(frontend).hvd
    with process_sets(frontend, [(0, 1), (1, 2), (1,)]) as sets:
        for _ in range(20):
            for members in sets:
                if hvd.rank() in members:
                    hvd.barrier(process_set=sets[members])
        hvd.barrier()


@every_frontend
@on_worlds(3, **DYNAMIC)
def test_sets_without_rank_0_do_not_wait_for_it(world: Workers, frontend: str, tmp_path: Path) -> None:
    world.run(_without_rank_0, frontend, str(tmp_path / "done"))


def _without_rank_0(frontend: str, done: str) -> None:
    """Rank 0 calls nothing until the others are done."""
    front = frontend_of(frontend)
    hvd = front.hvd
    with process_sets(frontend, [(1, 2)]) as sets:
        if hvd.rank() == 0:
            end = time.monotonic() + DEADLINE
            while not os.path.exists(done):
                assert time.monotonic() < end, "the others wait for rank 0"
                time.sleep(0.01)
        else:
            for number in range(3):
                time.sleep(0.1)  # until rank 0 rests
                ours = np.full(1000, float(hvd.rank()))
                total = hvd.allreduce(
                    front.tensor(ours), op=hvd.Sum, name=f"without.{number}", process_set=sets[1, 2]
                )
                assert np.array_equal(front.array(total), np.full(1000, 3.0))
            if hvd.rank() == 1:
                Path(done).touch()
        hvd.barrier()


@every_frontend
@on_worlds(3, **DYNAMIC)
def test_removal_fails_what_is_pending(world: Workers, frontend: str) -> None:
    outcomes = world.run(_remove_under_way, frontend)
    assert_raised(outcomes[:1], "HorovodInternalError")


def _remove_under_way(frontend: str) -> Raised | None:
    front = frontend_of(frontend)
    hvd, outcome, handle = front.hvd, None, None
    pair = hvd.add_process_set([0, 1])
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(front.tensor(np.ones(3)), name="never", process_set=pair)
    assert hvd.remove_process_set(pair)
    if handle is not None:
        outcome = error_of(hvd.synchronize, handle)
    assert front.array(hvd.allreduce(front.tensor(np.ones(2)), op=hvd.Sum)).tolist() == [3.0] * 2
    return outcome


@every_frontend
@on_worlds(3, **DYNAMIC)
def test_names_belong_to_sets(world: Workers, frontend: str) -> None:
    """The same name in flight in three sets and the world, finished in another order than started."""
    results = world.run(_same_name, frontend)
    wanted = {(0, 1): 1.0, (1, 2): 3.0, (0, 2): 2.0, (): 3.0}
    assert [{members: float(value[0]) for members, value in result.items()} for result in results] == [
        {members: value for members, value in wanted.items() if not members or rank in members}
        for rank in range(3)
    ]


def _same_name(frontend: str) -> dict[tuple[int, ...], Array]:
    front = frontend_of(frontend)
    hvd = front.hvd
    tensor = front.tensor(np.full(4, float(hvd.rank())))
    with process_sets(frontend, [(0, 1), (1, 2), (0, 2)]) as sets:
        mine = {members: one for members, one in sets.items() if hvd.rank() in members}
        mine[()] = hvd.global_process_set
        order = list(mine)
        handles = {
            members: hvd.allreduce_async(tensor, name="same", op=hvd.Sum, process_set=mine[members])
            for members in (order if hvd.rank() != 1 else order[::-1])
        }
        return {members: front.array(hvd.synchronize(handle)) for members, handle in handles.items()}


@every_frontend
@on_worlds(4, **DYNAMIC)
def test_the_ring_that_deadlocks_without_one_order(world: Workers, frontend: str) -> None:
    """{0,1}, {1,2}, {2,3}, {3,0}: each rank starts with its own set and waits for all at the end."""
    ring = [(0, 1), (1, 2), (2, 3), (0, 3)]
    calls = [
        Call(
            f"{members} {i}", "allreduce", (Tensor("float32", (count,), seed=i),), "_async", f"ring {i}", SUM
        )
        for i, count in enumerate((3, 5000, 40_000))
        for members in ring
    ]
    calls = [replace(c, members=m) for c, m in zip(calls, itertools.cycle(ring))]
    orders = [[*range(rank, len(calls)), *range(rank)] for rank in range(4)]
    for _ in range(3):
        prove(world, frontend, calls, orders=orders, sets=ring)
