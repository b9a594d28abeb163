"""Allreduce: every way to call it, on every type, at the sizes where the engine changes its ways."""

from __future__ import annotations

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support.marks import every_dtype, on_worlds
from tests.support.oracle import AVERAGE, SUM, assert_bytes, assert_reduced, canonical_sum, inputs, values
from tests.support.world import Workers

every_op = pytest.mark.parametrize("op", [AVERAGE, SUM], ids=["average", "sum"])

INLINE_BYTES = 2048
SLOT_BYTES = 256 << 10
BORDERS = [8, 2040, 2048, 2056, SLOT_BYTES - 8, SLOT_BYTES, SLOT_BYTES + 8, 2 * SLOT_BYTES, (3 << 20) + 136]


def _allreduce(
    form: str, dtype: str, shape: int | tuple[int, ...], name: str | None, **options: object
) -> np.ndarray:
    tensor = values(dtype, shape, hvd.rank())
    before = tensor.copy()
    if form == "out of place":
        result = hvd.allreduce(tensor, name=name, **options)
    elif form == "in place":
        result = hvd.allreduce_(tensor, name=name, **options)
    elif form == "async":
        result = hvd.synchronize(hvd.allreduce_async(tensor, name=name, **options))
    else:
        result = hvd.synchronize(hvd.allreduce_async_(tensor, name=name, **options))
    if form.startswith("in place"):
        assert result is tensor
    else:
        assert tensor.tobytes() == before.tobytes()
    return result


FORMS = ["out of place", "in place", "async", "in place async"]


@on_worlds(1, 2, 3, 4)
@every_dtype
@every_op
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [None, "named"], ids=["unnamed", "named"])
def test_forms(world: Workers, form: str, dtype: str, op: int, name: str | None) -> None:
    results = world.run(_allreduce_with_op, form, dtype, (7, 5), name, op)
    assert_reduced(results, inputs(dtype, (7, 5), len(results)), op)


def _allreduce_with_op(
    form: str, dtype: str, shape: tuple[int, ...], name: str | None, op: int
) -> np.ndarray:
    return _allreduce(form, dtype, shape, name, op=op)


@on_worlds(1, 2, 3, 4, 7)
@every_dtype
@pytest.mark.parametrize("size", BORDERS)
def test_sizes(world: Workers, dtype: str, size: int) -> None:
    count = size // np.dtype(dtype).itemsize
    results = world.run(_allreduce_with_op, "out of place", dtype, (count,), f"border.{size}", AVERAGE)
    assert_reduced(results, inputs(dtype, count, len(results)), AVERAGE)


@on_worlds(2, 3)
@pytest.mark.parametrize("count", [511, 512, 513, 65535, 65536, 65537, 131071, 1], ids=lambda n: f"{n}x4")
@pytest.mark.parametrize("form", ["in place", "async"])
def test_sizes_one_element_off(world: Workers, count: int, form: str) -> None:
    results = world.run(_allreduce_with_op, form, "float32", (count,), None, SUM)
    assert_bytes(results, canonical_sum(inputs("float32", count, len(results))))


@on_worlds(1, 2, 3, 4)
@every_dtype
@pytest.mark.parametrize("factors", [(0.5, 1.0), (1.0, 0.25), (3.0, 1.5), (-0.1, 7.0), (0.0, 1.0)], ids=str)
@every_op
@pytest.mark.parametrize("count", [10, 3000], ids=["inline", "plane"])
def test_scaling(world: Workers, dtype: str, factors: tuple[float, float], op: int, count: int) -> None:
    results = world.run(_allreduce_scaled, dtype, count, op, *factors)
    assert_reduced(results, inputs(dtype, count, len(results)), op, *factors)


def _allreduce_scaled(dtype: str, count: int, op: int, prescale: float, postscale: float) -> np.ndarray:
    return _allreduce(
        "in place", dtype, count, None, op=op, prescale_factor=prescale, postscale_factor=postscale
    )


@on_worlds(1, 2, 3)
@every_dtype
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 1)], ids=str)
def test_small_shapes(world: Workers, form: str, dtype: str, shape: tuple[int, ...]) -> None:
    results = world.run(_allreduce_with_op, form, dtype, shape, "shape", SUM)
    assert_reduced(results, inputs(dtype, shape, len(results)), SUM)


@on_worlds(1, 2)
@pytest.mark.parametrize("value", [3, 2.5, [1, 2, 3], [[1.5], [2.5]]], ids=str)
def test_array_likes(world: Workers, value: object) -> None:
    results = world.run(lambda: hvd.allreduce(value, op=hvd.Sum))
    assert_bytes(results, np.asarray(value) * len(results))


def _views(kind: str, tensor: np.ndarray) -> np.ndarray:
    base = np.zeros((tensor.shape[0] * 2, tensor.shape[1] * 2), tensor.dtype)
    view = {
        "strided": base[::2, ::2],
        "transposed": base[: tensor.shape[1], : tensor.shape[0]].T,
        "reversed": base[: tensor.shape[0], : tensor.shape[1]][::-1],
        "fortran": np.zeros(tensor.shape, tensor.dtype, order="F"),
        "columns": base[: tensor.shape[0], : tensor.shape[1]],
    }[kind]
    view[...] = tensor
    return view


every_view = pytest.mark.parametrize("kind", ["strided", "transposed", "reversed", "fortran", "columns"])


@on_worlds(1, 2, 3)
@every_view
@pytest.mark.parametrize("shape", [(4, 6), (60, 50)], ids=["inline", "plane"])
@pytest.mark.parametrize("form", ["sync", "async"])
def test_input_that_is_not_contiguous(world: Workers, kind: str, shape: tuple[int, int], form: str) -> None:
    results = world.run(_allreduce_view, kind, shape, form)
    assert_bytes(results, canonical_sum(inputs("float32", shape, len(results))))


def _allreduce_view(kind: str, shape: tuple[int, int], form: str) -> np.ndarray:
    view = _views(kind, values("float32", shape, hvd.rank()))
    if form == "sync":
        return hvd.allreduce(view, op=hvd.Sum)
    return hvd.synchronize(hvd.allreduce_async(view, op=hvd.Sum))


@on_worlds(1, 2)
@every_view
def test_in_place_needs_a_contiguous_array(world: Workers, kind: str) -> None:
    world.run(_in_place_view, kind)


def _in_place_view(kind: str) -> None:
    from tests.support.outcomes import assert_raised, error_of

    view = _views(kind, values("float32", (4, 6), 0))
    before = view.copy()
    outcomes = [error_of(call, view) for call in (hvd.allreduce_, hvd.allreduce_async_)]
    assert_raised(outcomes, "ValueError", "contiguous")
    assert np.array_equal(view, before)
    hvd.allreduce(view)  # the engine goes on, and unnamed operations still match


@on_worlds(1, 2, 3, 4)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("count", [6, 3000], ids=["inline", "plane"])
def test_integer_average_truncates_toward_zero(world: Workers, dtype: str, count: int) -> None:
    results = world.run(_average_of_odd, dtype, count)
    totals = np.resize(np.array([1, -1, 5, -5, 7, -7]), count)  # rank 0 gives all of it
    expected = (np.sign(totals) * (np.abs(totals) // len(results))).astype(dtype)
    assert_bytes(results, expected)


def _average_of_odd(dtype: str, count: int) -> np.ndarray:
    given = np.resize(np.array([1, -1, 5, -5, 7, -7], dtype), count)
    return hvd.allreduce(given if hvd.rank() == 0 else np.zeros_like(given))


@on_worlds(2, 3, 4)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("count", [4, 3000], ids=["inline", "plane"])
def test_integers_wrap(world: Workers, dtype: str, count: int) -> None:
    highest, lowest = np.iinfo(dtype).max, np.iinfo(dtype).min
    given = [np.resize(np.array([highest, lowest, highest - rank, 0], dtype), count) for rank in range(4)]
    results = world.run(lambda: hvd.allreduce(given[hvd.rank()], op=hvd.Sum))
    assert_bytes(results, canonical_sum(given[: len(results)]))


@on_worlds(2, 3, 4)
@pytest.mark.parametrize("count", [65, 200])
@pytest.mark.parametrize("elements", [3, 300, 3000], ids=["inline", "mixed", "plane"])
def test_many_at_once(world: Workers, count: int, elements: int) -> None:
    results = world.run(_many_at_once, count, elements)
    expected = [canonical_sum(inputs("float32", elements, len(results), seed)) for seed in range(count)]
    for_all = [np.concatenate(result) for result in results]
    assert_bytes(for_all, np.concatenate(expected))


def _many_at_once(count: int, elements: int) -> list[np.ndarray]:
    random = np.random.default_rng(hvd.rank())
    handles = {}
    for seed in random.permutation(count):
        tensor = values("float32", elements, hvd.rank(), int(seed))
        handles[seed] = hvd.allreduce_async_(tensor, name=f"many.{seed}", op=hvd.Sum)
    done = {seed: hvd.synchronize(handles[seed]) for seed in random.permutation(count)}
    return [done[seed] for seed in range(count)]


@on_worlds(2, 3)
@pytest.mark.parametrize("count", [10, 5000], ids=["inline", "plane"])
def test_output_may_be_the_input_of_another(world: Workers, count: int) -> None:
    """Two operations may read the same array at once."""
    results = world.run(_same_input_twice, count)
    assert_bytes(results, canonical_sum(inputs("float64", count, len(results))))


def _same_input_twice(count: int) -> np.ndarray:
    tensor = values("float64", count, hvd.rank())
    handles = [hvd.allreduce_async(tensor, name=f"same.{i}", op=hvd.Sum) for i in range(4)]
    results = [hvd.synchronize(handle) for handle in handles]
    assert len({result.tobytes() for result in results}) == 1
    return results[0]


@on_worlds(2, 3)
def test_ranks_may_call_in_different_ways(world: Workers) -> None:
    """Waiting or not is each rank's own business; unnamed operations that follow still match."""
    results = world.run(_mixed_calls)
    assert_reduced(results, inputs("float32", 9, len(results)), SUM)


def _mixed_calls() -> np.ndarray:
    tensor = values("float32", 9, hvd.rank())
    if hvd.rank() == 0:
        hvd.allreduce(tensor, name="mixed")
    else:
        hvd.synchronize(hvd.allreduce_async(tensor, name="mixed"))
    return hvd.allreduce(tensor, op=hvd.Sum)
