"""Allgather: equal and unequal rows, none at all, every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.calls import DTYPES, LAYOUTS, Call, Tensor, dtype_of
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import every_frontend, every_world
from tests.conformance.table import prove
from tests.support.outcomes import Raised, error_of
from tests.support.world import Workers

# How many rows each of up to seven ranks has.
ROWS = {
    "equal": (3,) * 7,
    "rising": tuple(range(1, 8)),
    "the first none": (0, 4, 2, 5, 1, 3, 2),
    "the last some": (0, 0, 0, 0, 0, 0, 3),
    "only the first": (5, 0, 0, 0, 0, 0, 0),
    "nobody": (0,) * 7,
    "one much": (1, 700, 0, 3, 9, 1, 2),
}
FORMS = ("", "_async")


def _call(dtype: str, rows: tuple[int, ...], rest: tuple[int, ...] = (), **more: Any) -> Call:
    label = " ".join([dtype, str(rows), str(rest), *(f"{k}={v}" for k, v in more.items())])
    tensor = Tensor(dtype, (0, *rest), rows, seed=len(label), layout=more.pop("layout", "plain"))
    return Call(label, "allgather", (tensor,), **more)


@every_frontend
@every_world
@pytest.mark.parametrize("rows", ROWS)
def test_rows(world: Workers, frontend: str, rows: str) -> None:
    calls = [
        _call(dtype, ROWS[rows], rest, form=form)
        for dtype in DTYPES
        for rest in ((), (5,), (2, 3), (0,))
        for form in FORMS
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_several_chunks(world: Workers, frontend: str) -> None:
    calls = []
    for dtype in ("uint8", "float16", "float32", "int64", "bool"):
        count = 300_001 // dtype_of(dtype).itemsize
        calls += [
            _call(dtype, (count,) * 7),
            _call(dtype, (0, count, 7, count // 3, 1, 0, 500)),
            _call(dtype, (13, 0, 7, 1, 1, 2, 5), (count // 10,)),
        ]
    calls.append(_call("float32", (1, 0, 3, 0, 1, 0, 2), (524_309,)))
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_layouts_and_names(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, (4, 3, 2, 5, 1, 6, 7), (6,), layout=layout, form=form, name=name)
        for dtype in ("float32", "bfloat16", "bool")
        for layout in ("plain", *LAYOUTS)
        for form in FORMS
        for name in (None, f"{dtype} {layout} {form}")
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_of_a_scalar_is_refused(world: Workers, frontend: str) -> None:
    for rank, outcome in enumerate(world.run(_gather_scalar, frontend)):
        assert outcome is not None, f"nothing was raised on rank {rank}"
        assert {"ValueError", "HorovodInternalError"} & set(outcome.classes), f"rank {rank}: {outcome}"


def _gather_scalar(frontend: str) -> Raised | None:
    front = frontend_of(frontend)
    return error_of(front.hvd.allgather, front.tensor(np.array(1.0)))
