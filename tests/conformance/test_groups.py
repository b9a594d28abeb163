"""Groups: tensors of different shapes, sizes and types as one operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.calls import (
    AVERAGE,
    FORMS,
    MAX,
    NUMBERS,
    OP_NAMES,
    REDUCTIONS,
    SUM,
    Call,
    Tensor,
)
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import every_frontend, every_world, on_worlds
from tests.conformance.table import prove
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

SHAPES: tuple[tuple[int, ...], ...] = ((3,), (), (0, 4), (70, 60), (5, 1, 2), (1,), (90_001,))
ROWS = ((3,) * 7, (0, 4, 2, 5, 1, 3, 2), (0,) * 7, (900, 1, 7, 2, 0, 5, 3))


def group(shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...], **more: Any) -> tuple[Tensor, ...]:
    """Tensors of these shapes, of types in turn."""
    return tuple(Tensor(dtypes[i % len(dtypes)], shape, seed=i, **more) for i, shape in enumerate(shapes))


def _allreduce(label: str, tensors: tuple[Tensor, ...], **more: Any) -> Call:
    label = " ".join([label, *(f"{k}={v}" for k, v in more.items())])
    return Call(label, "grouped_allreduce", tensors, **more)


@every_frontend
@every_world
def test_allreduce_of_every_type(world: Workers, frontend: str) -> None:
    calls = [
        _allreduce(f"{dtype} {OP_NAMES[op]}", group(SHAPES[:6], (dtype,)), op=op)
        for dtype in NUMBERS
        for op in REDUCTIONS
    ]
    calls.append(_allreduce("bool", group(SHAPES, ("bool",)), op=MAX))
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_allreduce_in_every_form(world: Workers, frontend: str) -> None:
    mixed = group(SHAPES, ("float32", "int8", "bfloat16", "float64", "uint16"))
    calls = [
        _allreduce("mixed", mixed, op=op, form=form, name=name)
        for op in (AVERAGE, SUM, MAX)
        for form in FORMS
        for name in (None, f"mixed {op} {form}")
    ]
    calls += [_allreduce("one", group(((4,),), ("int64",)), op=SUM, form=form) for form in FORMS]
    calls += [_allreduce("scaled", mixed, op=SUM, prescale=0.5, postscale=3.0, form=form) for form in FORMS]
    calls += [_allreduce("compressed", mixed, op=SUM, compression="fp16", form=form) for form in FORMS]
    strided = group(((4, 5), (60, 70)), ("float32", "bool"), layout="strided")
    calls += [_allreduce("strided", strided, op=MAX, form=form) for form in ("", "_async")]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_many_tensors(world: Workers, frontend: str) -> None:
    shapes = tuple((1 + i * i % 997,) for i in range(300))
    prove(world, frontend, [_allreduce("many", group(shapes, ("float32", "float16", "int32")), op=SUM)])


@every_frontend
@every_world
def test_allgather(world: Workers, frontend: str) -> None:
    calls = []
    for dtype in (*NUMBERS, "bool"):
        tensors = tuple(
            Tensor(dtype, (0, *rest), rows, seed=i)
            for i, (rows, rest) in enumerate((r, rest) for r in ROWS for rest in ((), (3,)))
        )
        for form in ("", "_async"):
            calls.append(Call(f"{dtype} {form}", "grouped_allgather", tensors, form=form))
            calls.append(Call(f"{dtype} {form} named", "grouped_allgather", tensors, form=form, name=dtype))
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_reducescatter(world: Workers, frontend: str) -> None:
    shapes = ((5,), (0, 3), (7, 2), (1, 1), (3001, 4))
    calls = [
        Call(
            f"{dtype} {OP_NAMES[op]} {form} {before} {name}",
            "grouped_reducescatter",
            group(shapes, (dtype,)),
            form=form,
            op=op,
            prescale=before,
            name=name,
        )
        for dtype in NUMBERS
        for op in (AVERAGE, SUM)
        for form in ("", "_async")
        for before, name in ((1.0, None), (0.5, f"{dtype} {op} {form}"))
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
@pytest.mark.parametrize(
    "function",
    [
        "grouped_allreduce",
        "grouped_allreduce_",
        "grouped_allgather",
        "grouped_reducescatter",
    ],
)
def test_no_tensors(world: Workers, frontend: str, function: str) -> None:
    """A group of nothing gives nothing, and takes no part in anything."""
    assert world.run(_of_nothing, frontend, function) == [[]] * len(world.pids)


def _of_nothing(frontend: str, function: str) -> list[Any]:
    hvd = frontend_of(frontend).hvd
    result = list(getattr(hvd, function)([]))
    hvd.barrier()
    return result


@every_frontend
@on_worlds(2, 3)
def test_groups_and_single_tensors_in_flight(world: Workers, frontend: str) -> None:
    """Submitted in another order by each rank."""
    mixed = ("float32", "int8", "float16")
    calls = [
        Call(f"group {i}", "grouped_allreduce", group(SHAPES, mixed), "_async", f"group {i}", op=SUM)
        for i in range(10)
    ]
    calls += [
        Call(f"gather {i}", "grouped_allgather", group(((2,), (3, 2)), mixed), "_async", f"gather {i}")
        for i in range(10)
    ]
    calls += [
        Call(f"one {i}", "allreduce", group(((i * 100,),), mixed), "_async", f"one {i}", op=SUM)
        for i in range(20)
    ]
    size = len(world.pids)
    orders = [np.random.default_rng(rank).permutation(len(calls)).tolist() for rank in range(size)]
    prove(world, frontend, calls, orders=orders)


@every_frontend
@on_worlds(1, 2)
def test_a_bad_member_refuses_the_group(world: Workers, frontend: str) -> None:
    """Before anything is submitted: unnamed operations still match afterwards."""
    assert_raised(world.run(_bad_member, frontend)[:1], "ValueError")


def _bad_member(frontend: str) -> Raised | None:
    front = frontend_of(frontend)
    outcome = None
    if front.hvd.rank() == 0:
        tensors = [front.tensor(np.ones(3)), front.tensor(np.ones(3, bool))]
        outcome = error_of(front.hvd.grouped_allreduce, tensors, op=SUM)
    total = front.array(front.hvd.allreduce(front.tensor(np.ones(3)), op=SUM))
    assert total.tolist() == [front.hvd.size()] * 3
    return outcome
