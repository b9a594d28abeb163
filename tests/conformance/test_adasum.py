"""Adasum: the tree of pairs, bit for bit, and where it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.calls import ADASUM, FLOATS, FORMS, Call, Tensor
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import every_frontend, on_worlds
from tests.conformance.table import prove
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

COUNTS = (0, 1, 7, 8, 9, 100, 4099, 75_001)


def _call(dtype: str, shape: tuple[int, ...], **more: Any) -> Call:
    label = " ".join([dtype, str(list(shape)), *(f"{k}={v}" for k, v in more.items())])
    tensor = Tensor(dtype, shape, seed=len(label), data=more.pop("data", "random"))
    return Call(label, "allreduce", (tensor,), op=ADASUM, **more)


@every_frontend
@on_worlds(1, 2, 4, 8)
def test_sizes(world: Workers, frontend: str) -> None:
    prove(world, frontend, [_call(dtype, (count,)) for dtype in FLOATS for count in COUNTS])


@every_frontend
@on_worlds(1, 2, 4)
def test_forms_shapes_and_zeros(world: Workers, frontend: str) -> None:
    calls = [_call(dtype, (9, 11), form=form) for dtype in FLOATS for form in FORMS]
    calls += [_call(dtype, shape) for dtype in FLOATS for shape in ((), (2, 0), (3, 4, 5))]
    calls += [_call(dtype, (20,), data="zeros") for dtype in FLOATS]
    calls += [
        _call(dtype, (300,), prescale=0.3, postscale=-1.7, form=form)
        for dtype in ("float32", "float64")
        for form in FORMS
    ]
    prove(world, frontend, calls)


@every_frontend
@on_worlds(2, 4)
def test_groups_are_combined_tensor_by_tensor(world: Workers, frontend: str) -> None:
    tensors = tuple(
        Tensor(FLOATS[i % 4], (count,), seed=i) for i, count in enumerate((5, 3000, 0, 40, 9, 1, 700))
    )
    calls = [Call(form, "grouped_allreduce", tensors, form=form, op=ADASUM) for form in FORMS]
    prove(world, frontend, calls)


@every_frontend
@on_worlds(2, 4)
def test_many_at_once(world: Workers, frontend: str) -> None:
    """However they share buckets, each tensor has its own angle."""
    calls = [
        _call(dtype, (count,), form="_async", name=f"{dtype} {count}")
        for dtype in FLOATS
        for count in range(1, 900, 37)
    ]
    size = len(world.pids)
    orders = [np.random.default_rng(rank).permutation(len(calls)).tolist() for rank in range(size)]
    prove(world, frontend, calls, orders=orders)


@every_frontend
@on_worlds(3, 7)
@pytest.mark.parametrize("form", FORMS)
def test_needs_a_power_of_two(world: Workers, frontend: str, form: str) -> None:
    outcomes = world.run(_refused, frontend, f"allreduce{form}", "float32")
    assert_raised(outcomes, "NotImplementedError", "Adasum", str(len(outcomes)))


@every_frontend
@on_worlds(2, 4)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_needs_floating_types(world: Workers, frontend: str, dtype: str) -> None:
    assert_raised(world.run(_refused, frontend, "allreduce", dtype), "ValueError", dtype)


def _refused(frontend: str, function: str, dtype: str) -> Raised | None:
    front = frontend_of(frontend)
    outcome = error_of(getattr(front.hvd, function), front.tensor(np.ones(3, dtype)), op=ADASUM)
    front.hvd.barrier()
    return outcome
