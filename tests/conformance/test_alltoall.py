"""Alltoall: even, with splits, with nothing, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.calls import DTYPES, LAYOUTS, Call, Tensor
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import every_frontend, every_world, on_worlds
from tests.conformance.table import prove
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

Splits = tuple[tuple[int, ...], ...]


def splits_of(kind: str, size: int) -> Splits:
    """How many rows each rank sends to each."""
    random = np.random.default_rng([size, len(kind)])
    table = {
        "ones": np.ones((size, size)),
        "rising": np.add.outer(np.arange(size), np.arange(size)),
        "random": random.integers(0, 5, (size, size)),
        "sparse": random.integers(0, 9, (size, size)) * (random.random((size, size)) < 0.3),
        "to the first": np.eye(size)[[0] * size] * 3,
        "from the last": np.outer(np.eye(size)[-1], np.arange(size) + 1),
        "to itself": np.eye(size) * 4,
        "nothing": np.zeros((size, size)),
    }[kind]
    return tuple(tuple(int(n) for n in row) for row in table)


KINDS = ("ones", "rising", "random", "sparse", "to the first", "from the last", "to itself", "nothing")
FORMS = ("", "_async")


def _call(dtype: str, splits: Splits, rest: tuple[int, ...] = (), spare: int = 0, **more: Any) -> Call:
    """``spare`` rows at the end go nowhere."""
    label = " ".join([dtype, str(splits), str(rest), str(spare), *(f"{k}={v}" for k, v in more.items())])
    rows = tuple(sum(row) + spare for row in splits)
    tensor = Tensor(dtype, (0, *rest), rows, seed=len(label), layout=more.pop("layout", "plain"))
    return Call(label, "alltoall", (tensor,), splits=splits, **more)


def _even(dtype: str, rows: tuple[int, ...], rest: tuple[int, ...] = (), **more: Any) -> Call:
    label = " ".join([dtype, str(rows), str(rest), *(f"{k}={v}" for k, v in more.items())])
    tensor = Tensor(dtype, (0, *rest), rows, seed=len(label), layout=more.pop("layout", "plain"))
    return Call(label, "alltoall", (tensor,), **more)


@every_frontend
@every_world
@pytest.mark.parametrize("kind", KINDS)
def test_splits(world: Workers, frontend: str, kind: str) -> None:
    splits = splits_of(kind, len(world.pids))
    calls = [
        _call(dtype, splits, rest, spare, form=form)
        for dtype in DTYPES
        for rest, spare in (((), 0), ((5,), 2), ((2, 3), 0), ((0,), 1))
        for form in FORMS
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_even(world: Workers, frontend: str) -> None:
    size = len(world.pids)
    calls = [
        _even(dtype, (count * size,) * size, rest, form=form)
        for dtype in DTYPES
        for count in (0, 1, 3, 100)
        for rest in ((), (5,))
        for form in FORMS
    ]
    each_its_own = tuple(size * rank for rank in range(size))
    calls += [_even(dtype, each_its_own, (2,), form=form) for dtype in DTYPES for form in FORMS]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_several_chunks(world: Workers, frontend: str) -> None:
    size = len(world.pids)
    wide = splits_of("random", size)
    tall = tuple(tuple(n * 1201 + 1 for n in row) for row in wide)
    calls = [_even(dtype, (20_001 * size,) * size) for dtype in ("uint8", "bfloat16", "float32")]
    calls += [_call(dtype, tall, (3,), 5) for dtype in ("int8", "float16", "int64")]
    calls += [_call("float32", wide, (20_011,), form="_async")]
    calls += [_call("float64", splits_of("from the last", size), (40_001,))]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_layouts_and_names(world: Workers, frontend: str) -> None:
    splits = splits_of("rising", len(world.pids))
    calls = [
        _call(dtype, splits, (6,), 1, layout=layout, form=form, name=name)
        for dtype in ("float32", "bfloat16")
        for layout in ("plain", *LAYOUTS)
        for form in FORMS
        for name in (None, f"{dtype} {layout} {form}")
    ]
    prove(world, frontend, calls)


SPLITS_AS = {
    "list": list,
    "tuple": tuple,
    "int32 array": lambda row: np.array(row, np.int32),
}


@every_frontend
@on_worlds(1, 2, 3)
@pytest.mark.parametrize("given", SPLITS_AS)
def test_ways_to_give_splits(world: Workers, frontend: str, given: str) -> None:
    results = world.run(_with_splits_as, frontend, SPLITS_AS[given])
    size = len(results)
    assert results == [(list(range(size)), "int32", [1] * size)] * size


def _with_splits_as(frontend: str, convert: Any) -> tuple[list[int], str, list[int]]:
    front = frontend_of(frontend)
    tensor = front.tensor(np.full(front.hvd.size(), front.hvd.rank()))
    output, received = front.hvd.alltoall(tensor, convert([1] * front.hvd.size()))
    received = front.array(received)
    return front.array(output).tolist(), str(received.dtype), received.tolist()


BAD_SPLITS = {
    "two dimensions": lambda size: np.ones((size, 1), np.int32),
    "too short": lambda size: [1] * (size - 1),
    "too long": lambda size: [1] * (size + 1),
    "too many rows": lambda size: [9] * size,
    "negative": lambda size: [-1] * size,
    "floats": lambda size: np.ones(size, np.float32),
}


@every_frontend
@on_worlds(1, 2, 3)
@pytest.mark.parametrize("case", BAD_SPLITS)
def test_bad_splits(world: Workers, frontend: str, case: str) -> None:
    assert_raised(world.run(_refused, frontend, BAD_SPLITS[case]), "ValueError", "splits")


def _refused(frontend: str, splits: Any) -> Raised | None:
    front = frontend_of(frontend)
    tensor = front.tensor(np.ones(5))
    outcome = error_of(front.hvd.alltoall, tensor, splits(front.hvd.size()))
    front.hvd.barrier()
    return outcome


@every_frontend
@on_worlds(2, 3, 4)
def test_rows_that_cannot_be_divided(world: Workers, frontend: str) -> None:
    outcomes = world.run(_indivisible, frontend)
    assert_raised(outcomes, "ValueError", str(len(outcomes) + 1))


def _indivisible(frontend: str) -> Raised | None:
    front = frontend_of(frontend)
    return error_of(front.hvd.alltoall, front.tensor(np.ones(front.hvd.size() + 1)))


@every_frontend
@every_world
def test_of_a_scalar_is_refused(world: Workers, frontend: str) -> None:
    for rank, outcome in enumerate(world.run(_scalar, frontend)):
        assert outcome is not None, f"nothing was raised on rank {rank}"
        assert {"ValueError", "HorovodInternalError"} & set(outcome.classes), f"rank {rank}: {outcome}"


def _scalar(frontend: str) -> Raised | None:
    front = frontend_of(frontend)
    return error_of(front.hvd.alltoall, front.tensor(np.array(1.0)))
