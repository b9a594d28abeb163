"""Allreduce: every type, reduction, size, form and factor."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conformance.calls import (
    AVERAGE,
    DTYPES,
    FLOATS,
    FORMS,
    INTEGERS,
    LAYOUTS,
    MAX,
    MIN,
    NUMBERS,
    OP_NAMES,
    PRODUCT,
    REDUCTIONS,
    SUM,
    Call,
    Tensor,
    dtype_of,
)
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import every_frontend, every_world, on_worlds
from tests.conformance.table import prove
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

TINY, MEDIUM = 37, 4099
BYTES_OF_SEVERAL_CHUNKS = (300_001, (2 << 20) + 1111)
FACTORS = ((0.5, 1.0), (1.0, 0.25), (3.0, 1.5), (-0.1, 7.0), (0.0, 1.0), (1 / 3, 1 / 3))

of_bool = [(dtype, op) for dtype in ("bool",) for op in (MIN, MAX)]
of_numbers = list(itertools.product(NUMBERS, REDUCTIONS))


def _seed(*parts: object) -> int:
    return sum(ord(letter) * (i + 1) for i, letter in enumerate(str(parts)))


def _call(dtype: str, op: int, shape: tuple[int, ...], **more: Any) -> Call:
    label = " ".join([dtype, OP_NAMES[op], str(list(shape)), *(f"{k}={v}" for k, v in more.items())])
    data = more.pop("data", "random")
    tensor = Tensor(dtype, shape, seed=_seed(dtype, op, shape), data=data, layout=more.pop("layout", "plain"))
    return Call(label, "allreduce", (tensor,), op=op, **more)


@every_frontend
@every_world
@pytest.mark.parametrize("count", [TINY, MEDIUM], ids=["tiny", "medium"])
def test_every_type_and_reduction(world: Workers, frontend: str, count: int) -> None:
    prove(world, frontend, [_call(dtype, op, (count,)) for dtype, op in of_numbers + of_bool])


@every_frontend
@every_world
@pytest.mark.parametrize("op", [AVERAGE, MAX], ids=lambda op: OP_NAMES[op])
def test_several_chunks(world: Workers, frontend: str, op: int) -> None:
    dtypes = NUMBERS if op == AVERAGE else ("bool", "int8", "float32")
    small, large = BYTES_OF_SEVERAL_CHUNKS
    calls = [_call(dtype, op, (small // dtype_of(dtype).itemsize,)) for dtype in dtypes]
    for dtype in set(dtypes) & {"bfloat16", "float32"}:
        calls.append(_call(dtype, op, (large // dtype_of(dtype).itemsize,)))
    prove(world, frontend, calls)


@every_frontend
@every_world
@pytest.mark.parametrize("count", [11, 1500], ids=["tiny", "medium"])
def test_factors(world: Workers, frontend: str, count: int) -> None:
    calls = [
        _call(dtype, op, (count,), prescale=before, postscale=after)
        for (dtype, op), (before, after) in itertools.product(of_numbers, FACTORS[:: 1 if count < 99 else 2])
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_default_is_the_average(world: Workers, frontend: str) -> None:
    prove(world, frontend, [replace(_call(dtype, AVERAGE, (3, 2)), op=None) for dtype in NUMBERS])


@every_frontend
@every_world
def test_forms(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, op, (count,), form=form, name=name)
        for dtype, op in [("float32", SUM), ("int8", MIN), ("bfloat16", AVERAGE), ("bool", MAX)]
        for count in (5, 3000)
        for form in FORMS
        for name in (None, f"forms.{dtype}.{count}.{form}")
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_shapes(world: Workers, frontend: str) -> None:
    shapes = [(), (0,), (3, 0, 2), (1, 1, 1), (2, 3, 5, 7), (1,) * 16]
    calls = [
        _call(dtype, MAX if dtype == "bool" else SUM, shape, form=form)
        for dtype in DTYPES
        for shape in shapes
        for form in ("", "_async_")
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_layouts(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, MIN, shape, layout=layout, form=form)
        for dtype in ("float32", "float16", "bfloat16", "uint8", "bool")
        for shape in ((4, 6), (60, 71))
        for layout in LAYOUTS
        for form in ("", "_async")
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_special_values(world: Workers, frontend: str) -> None:
    """NaN, infinities, both zeros, subnormals; and the limits of integers."""
    calls = [_call(dtype, op, (count,), data="special") for dtype, op in of_numbers for count in (150, 4000)]
    calls += [
        _call(dtype, op, (150,), data="special", prescale=-0.5, postscale=3.0)
        for dtype in FLOATS
        for op in REDUCTIONS
    ]
    calls += [
        _call(dtype, op, (150,), data="special", postscale=1.25) for dtype in INTEGERS for op in REDUCTIONS
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(world: Workers, frontend: str, compression: str) -> None:
    """Of float32 and float64; other types are left alone."""
    calls = [
        _call(dtype, op, (count,), compression=compression)
        for dtype in NUMBERS
        for op in REDUCTIONS
        for count in (TINY, MEDIUM)
    ]
    calls += [
        _call(dtype, SUM, (count,), compression=compression, prescale=0.3, postscale=1.7, form=form)
        for dtype in ("float32", "float64")
        for count in (TINY, MEDIUM)
        for form in FORMS
    ]
    calls += [_call("float32", AVERAGE, (75_001,), compression=compression)]
    calls += [_call("float64", AVERAGE, (150, 3), compression=compression, layout="strided")]
    calls += [_call("bool", MAX, (9,), compression=compression)]
    prove(world, frontend, calls)


@every_frontend
@on_worlds(2, 3)
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression_of_special_values(world: Workers, frontend: str, compression: str) -> None:
    """What a half cannot hold becomes infinite or zero."""
    calls = [
        _call(dtype, op, (1000,), compression=compression, data="special")
        for dtype in ("float32", "float64")
        for op in REDUCTIONS
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
@pytest.mark.parametrize("op", [None, SUM, AVERAGE, PRODUCT], ids=["default", "sum", "average", "product"])
def test_bool_has_no_sum(world: Workers, frontend: str, op: int | None) -> None:
    outcomes = world.run(_reduce_bool, frontend, op)
    assert_raised(outcomes, "ValueError", "bool")
    assert any(word in outcomes[0].message for word in ("Min", "Max", "cast", "astype")), "no advice"


def _reduce_bool(frontend: str, op: int | None) -> Raised | None:
    front = frontend_of(frontend)
    tensor = front.tensor(np.ones(3, bool))
    return error_of(front.hvd.allreduce, tensor, **({} if op is None else {"op": op}))


@every_frontend
@on_worlds(2, 3, 4, 7)
def test_many_at_once(world: Workers, frontend: str) -> None:
    """All types, reductions and sizes in flight together, submitted in another order by each rank."""
    calls = [
        _call(dtype, op, (count,), form=form, name=f"at once {dtype} {op} {count}")
        for (dtype, op), (count, form) in itertools.product(
            of_numbers + of_bool, [(3, "_async"), (700, "_async_"), (9001, "_async")]
        )
    ]
    size = len(world.pids)
    orders = [np.random.default_rng(rank).permutation(len(calls)).tolist() for rank in range(size)]
    prove(world, frontend, calls, orders=orders)
