"""Reducescatter: rows that divide evenly or not, sums and averages, factors, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.calls import (
    ADASUM,
    AVERAGE,
    INTEGERS,
    LAYOUTS,
    MAX,
    MIN,
    NUMBERS,
    OP_NAMES,
    PRODUCT,
    SUM,
    Call,
    Tensor,
    dtype_of,
)
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import every_frontend, every_world
from tests.conformance.table import prove
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

FORMS = ("", "_async")


def _call(dtype: str, shape: tuple[int, ...], op: int | None, **more: Any) -> Call:
    op_name = "default" if op is None else OP_NAMES[op]
    label = " ".join([dtype, str(list(shape)), op_name, *(f"{k}={v}" for k, v in more.items())])
    layout, data = more.pop("layout", "plain"), more.pop("data", "random")
    tensor = Tensor(dtype, shape, seed=len(label), data=data, layout=layout)
    return Call(label, "reducescatter", (tensor,), op=op, **more)


@every_frontend
@every_world
@pytest.mark.parametrize("op", [AVERAGE, SUM, None], ids=["average", "sum", "default"])
def test_rows(world: Workers, frontend: str, op: int | None) -> None:
    """More rows than ranks, as many, fewer, one and none."""
    calls = [
        _call(dtype, (rows, *rest), op, form=FORMS[(i + len(rest)) % 2])
        for i, dtype in enumerate(NUMBERS)
        for rows in (0, 1, 2, 3, 7, 8, 50)
        for rest in ((), (7, 5))
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_factors(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, (11, 3), op, prescale=before, postscale=after, form=form)
        for dtype in NUMBERS
        for op in (SUM, AVERAGE)
        for before, after in ((0.5, 1.0), (1.0, 0.25), (-3.0, 1.5), (1 / 3, 1 / 3))
        for form in FORMS
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_several_chunks(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, (300_001 // dtype_of(dtype).itemsize // width, width), op)
        for dtype in NUMBERS
        for op, width in ((SUM, 1), (AVERAGE, 13))
    ]
    calls += [_call("float32", (5, 104_729), SUM), _call("uint8", ((2 << 20) + 1111,), SUM)]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_layouts_names_and_special_values(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, (10, 9), SUM, layout=layout, form=form, name=name)
        for dtype in ("float32", "bfloat16")
        for layout in ("plain", *LAYOUTS)
        for form in FORMS
        for name in (None, f"{dtype} {layout} {form}")
    ]
    calls += [_call(dtype, (11, 40), op, data="special") for dtype in NUMBERS for op in (SUM, AVERAGE)]
    calls += [_call(dtype, (11, 4), SUM, data="special", postscale=0.3) for dtype in INTEGERS]
    calls += [_call(dtype, (0, 9), SUM) for dtype in NUMBERS] + [_call("float32", (9, 0), AVERAGE)]
    prove(world, frontend, calls)


@every_frontend
@every_world
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(world: Workers, frontend: str, compression: str) -> None:
    calls = [
        _call(dtype, (rows, 3), op, compression=compression)
        for dtype in NUMBERS
        for op in (SUM, AVERAGE)
        for rows in (5, 3001)
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
@pytest.mark.parametrize("op", [MIN, MAX, PRODUCT, ADASUM], ids=lambda op: OP_NAMES[op])
def test_other_reductions_are_refused(world: Workers, frontend: str, op: int) -> None:
    assert_raised(world.run(_refused, frontend, (6,), "float32", op), "HorovodInternalError")


@every_frontend
@every_world
def test_scalars_and_bool_are_refused(world: Workers, frontend: str) -> None:
    assert_raised(world.run(_refused, frontend, (), "float32", SUM), "ValueError")
    assert_raised(world.run(_refused, frontend, (6,), "bool", SUM), "ValueError", "bool")


def _refused(frontend: str, shape: tuple[int, ...], dtype: str, op: int) -> Raised | None:
    front = frontend_of(frontend)
    outcome = error_of(front.hvd.reducescatter, front.tensor(np.ones(shape, dtype)), op=op)
    front.hvd.barrier()
    return outcome
