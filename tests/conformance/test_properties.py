"""Random plans: operations of all kinds in random overlapping process sets, submitted in random orders.

Hypothesis draws the plan in the test process; a world runs it; the oracle knows what comes out. There is no
shrinking: an example that hangs costs its world, and a plan is small enough to read.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conformance.calls import (
    DTYPES,
    MAX,
    MIN,
    NUMBERS,
    REDUCTIONS,
    SUM,
    Call,
    Tensor,
)
from tests.conformance.marks import DYNAMIC, every_frontend, keys_of_worlds
from tests.conformance.table import prove
from tests.support.world import WorldKey, Worlds

KINDS = (
    "allreduce",
    "grouped_allreduce",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "grouped_reducescatter",
)
EXAMPLES = 25

moderately = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

rests = st.sampled_from([(), (3,), (2, 5), (0,), (701,), (20_011,)])
rows = st.integers(0, 9)


@st.composite
def tensors(draw: st.DrawFn, base: str, size: int, members: int, dtype: str) -> Tensor:
    """A tensor that the operation takes."""
    rest, seed = draw(rests), draw(st.integers(0, 99))
    data = draw(st.sampled_from(["random", "random", "special"]))
    if base == "allgather":
        return Tensor(dtype, (0, *rest), tuple(draw(rows) for _ in range(size)), seed, data)
    if base == "alltoall":
        return Tensor(dtype, (0, *rest), tuple(draw(rows) * members for _ in range(size)), seed, data)
    scalar = base in ("allreduce", "broadcast") and draw(st.integers(0, 9)) == 0
    return Tensor(dtype, () if scalar else (draw(rows), *rest), (), seed, data)


@st.composite
def calls(draw: st.DrawFn, index: int, size: int, sets: list[tuple[int, ...]], waits: bool) -> Call:
    """One operation of one set."""
    kind = draw(st.sampled_from(KINDS))
    base = kind.removeprefix("grouped_")
    members = draw(st.sampled_from([None, *sets]))
    count = size if members is None else len(members)
    reduces = base in ("allreduce", "reducescatter")
    dtype = draw(st.sampled_from(NUMBERS if reduces else DTYPES))
    op = None
    if base == "reducescatter":
        op = draw(st.sampled_from([None, SUM]))
    elif reduces:
        op = draw(st.sampled_from([None, *REDUCTIONS]))
        if op in (MIN, MAX):
            dtype = draw(st.sampled_from(DTYPES))
    number = draw(st.integers(1, 4)) if kind != base else 1
    scales = reduces and dtype != "bool" and draw(st.booleans())
    given = tuple(draw(tensors(base, size, count, dtype)) for _ in range(number))
    in_place = base in ("allreduce", "broadcast") and kind != "grouped_broadcast" and draw(st.booleans())
    splits = None
    if base == "alltoall" and draw(st.booleans()):
        splits = tuple(_some_splits(draw, available, count) for available in given[0].rows)
    return Call(
        label=f"{index} {kind}",
        kind=kind,
        tensors=given,
        form=("" if waits else "_async") + ("_" if in_place else ""),
        name=f"drawn {index}",
        op=op,
        prescale=draw(st.sampled_from([0.5, -3.0])) if scales else 1.0,
        postscale=draw(st.sampled_from([1.0, 0.3])) if scales else 1.0,
        root=draw(st.sampled_from(list(range(size)) if members is None else members)),
        splits=splits,
        compression=draw(st.sampled_from(["none", "none", "fp16", "bf16"])) if reduces else "none",
        members=members,
    )


def _some_splits(draw: st.DrawFn, available: int, count: int) -> tuple[int, ...]:
    result = []
    for _ in range(count):
        result.append(draw(st.integers(0, min(4, available))))
        available -= result[-1]
    return tuple(result)


@st.composite
def plans(
    draw: st.DrawFn, size: int, waits: bool
) -> tuple[list[tuple[int, ...]], list[Call], list[list[int]]]:
    """Process sets, operations in them, and the order in which each rank submits."""
    some_ranks = st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True)
    drawn = draw(st.lists(some_ranks.map(lambda ranks: tuple(sorted(ranks))), max_size=4, unique=True))
    sets = [members for members in drawn if len(members) < size]
    chosen = [draw(calls(index, size, sets, waits)) for index in range(draw(st.integers(1, 14)))]
    if waits:
        return sets, chosen, [list(range(len(chosen)))] * size
    return sets, chosen, [draw(st.permutations(range(len(chosen)))) for _ in range(size)]


@every_frontend
@keys_of_worlds(2, 3, 4, 7, **DYNAMIC)
def test_in_flight_in_any_order(worlds: Worlds, world: WorldKey, frontend: str) -> None:
    """Whatever overlaps, nothing waits for ever, and everything comes out right."""

    @moderately
    @given(plan=plans(world.size, waits=False))
    def holds(plan: tuple[list[tuple[int, ...]], list[Call], list[list[int]]]) -> None:
        sets, chosen, orders = plan
        prove(worlds.get(world), frontend, chosen, orders=orders, sets=sets)

    holds()


@every_frontend
@keys_of_worlds(2, 3, 4, 7, **DYNAMIC)
def test_one_by_one(worlds: Worlds, world: WorldKey, frontend: str) -> None:
    """In one order, each rank waiting for its own."""

    @moderately
    @given(plan=plans(world.size, waits=True))
    def holds(plan: tuple[list[tuple[int, ...]], list[Call], list[list[int]]]) -> None:
        sets, chosen, orders = plan
        prove(worlds.get(world), frontend, chosen, orders=orders, sets=sets)

    holds()
