"""Broadcast: from every root, of every type, shape and size."""

from __future__ import annotations

from typing import Any

from tests.conformance.calls import DTYPES, FORMS, LAYOUTS, Call, Tensor, dtype_of
from tests.conformance.marks import every_frontend, every_world
from tests.conformance.table import prove
from tests.support.world import Workers


def _call(dtype: str, shape: tuple[int, ...], root: int, **more: Any) -> Call:
    label = " ".join([dtype, str(list(shape)), f"from {root}", *(f"{k}={v}" for k, v in more.items())])
    layout, data = more.pop("layout", "plain"), more.pop("data", "random")
    return Call(label, "broadcast", (Tensor(dtype, shape, data=data, layout=layout),), root=root, **more)


@every_frontend
@every_world
def test_every_type_and_root(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, shape, root)
        for dtype in DTYPES
        for shape in ((5,), (71, 60))
        for root in range(len(world.pids))
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_forms(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, (count,), root, form=form, name=name)
        for dtype in ("float32", "bfloat16", "bool")
        for count in (3, 5000)
        for root in {0, len(world.pids) - 1}
        for form in FORMS
        for name in (None, f"{dtype} {count} {root} {form}")
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_shapes_and_layouts(world: Workers, frontend: str) -> None:
    root = len(world.pids) // 2
    shapes = [(), (0,), (3, 0, 2), (1, 1, 1), (2, 3, 5, 7)]
    calls = [
        _call(dtype, shape, root, form=form)
        for i, dtype in enumerate(DTYPES)
        for shape in shapes
        for form in (FORMS[i % 4], FORMS[(i + 1) % 4])
    ]
    calls += [
        _call(dtype, (40, 50), root, layout=layout, form=form)
        for dtype in ("uint8", "float64", "bfloat16")
        for layout in LAYOUTS
        for form in ("", "_async")
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_several_chunks(world: Workers, frontend: str) -> None:
    calls = [
        _call(dtype, (nbytes // dtype_of(dtype).itemsize,), root, form="_")
        for dtype, nbytes in (("uint8", 300_001), ("int64", 300_001), ("bfloat16", (2 << 20) + 1111))
        for root in {0, len(world.pids) - 1}
    ]
    prove(world, frontend, calls)


@every_frontend
@every_world
def test_every_bit_arrives(world: Workers, frontend: str) -> None:
    """Nothing is computed: signs of zeros and of NaN stay."""
    calls = [_call(dtype, (500,), 0, data="special") for dtype in DTYPES]
    prove(world, frontend, calls)
