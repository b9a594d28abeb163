"""Broadcast: from every root, of every type, inline and on the data plane; and barriers."""

from __future__ import annotations

import time

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support.marks import on_worlds
from tests.support.oracle import assert_bytes, values
from tests.support.world import Workers

BROADCAST_DTYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "bool",
]
SIZES = [0, 1, 2048, 2056, (256 << 10) - 8, 256 << 10, (256 << 10) + 8, (2 << 20) + 24]


def _broadcast(form: str, dtype: str, count: int, root: int, name: str | None) -> np.ndarray:
    tensor = values("int64", count, hvd.rank()).astype(dtype)
    before = tensor.copy()
    if form == "out of place":
        result = hvd.broadcast(tensor, root, name=name)
    elif form == "in place":
        result = hvd.broadcast_(tensor, root, name=name)
    elif form == "async":
        result = hvd.synchronize(hvd.broadcast_async(tensor, root, name=name))
    else:
        result = hvd.synchronize(hvd.broadcast_async_(tensor, root, name=name))
    if form.startswith("in place"):
        assert result is tensor
    else:
        assert tensor.tobytes() == before.tobytes()
    return result


every_form = pytest.mark.parametrize("form", ["out of place", "in place", "async", "in place async"])


@on_worlds(1, 2, 3, 4)
@every_form
@pytest.mark.parametrize("root", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [5, 3000], ids=["inline", "plane"])
@pytest.mark.parametrize("name", [None, "named"], ids=["unnamed", "named"])
def test_every_root(world: Workers, form: str, root: int, count: int, name: str | None) -> None:
    root %= len(world.pids)
    results = world.run(_broadcast, form, "float32", count, root, name)
    assert_bytes(results, values("int64", count, root).astype("float32"))


@on_worlds(2, 3)
@pytest.mark.parametrize("dtype", BROADCAST_DTYPES)
@pytest.mark.parametrize("count", [7, 5000], ids=["inline", "plane"])
def test_every_dtype(world: Workers, dtype: str, count: int) -> None:
    results = world.run(_broadcast, "out of place", dtype, count, 1, "dtypes")
    assert_bytes(results, values("int64", count, 1).astype(dtype))


@on_worlds(2, 3, 4, 7)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["in place", "async"])
def test_sizes(world: Workers, size: int, form: str) -> None:
    count = size // 8
    results = world.run(_broadcast, form, "int64", count, 1, None)
    assert_bytes(results, values("int64", count, 1))


@on_worlds(2, 3, 4)
def test_many_roots_at_once(world: Workers) -> None:
    """Broadcasts from different roots and reductions share the plane."""
    results = world.run(_many_roots)
    size = len(results)
    expected = np.concatenate([values("float32", 4000, i % size, i) for i in range(30)])
    assert_bytes(results, expected)


def _many_roots() -> np.ndarray:
    tensors = [values("float32", 4000, hvd.rank(), i) for i in range(30)]
    order = np.random.default_rng(hvd.rank()).permutation(30)
    sums = [hvd.allreduce_async(tensors[i], name=f"between.{i}") for i in order]
    handles = {i: hvd.broadcast_async(tensors[i], int(i) % hvd.size(), name=f"roots.{i}") for i in order}
    results = [hvd.synchronize(handles[i]) for i in range(30)]
    for handle in sums:
        hvd.synchronize(handle)
    return np.concatenate(results)


@on_worlds(1, 2, 3, 4)
@pytest.mark.parametrize("late", [0, 1])
def test_barrier_waits_for_everybody(world: Workers, late: int) -> None:
    """Nobody leaves before the last one has come: all clocks are the machine's."""
    times = world.run(_barrier_times, late % len(world.pids))
    assert max(came for came, _ in times) <= min(left for _, left in times)


def _barrier_times(late: int) -> tuple[float, float]:
    if hvd.rank() == late:
        time.sleep(0.05)
    came = time.monotonic()
    hvd.barrier()
    return came, time.monotonic()


@on_worlds(2, 3)
def test_barriers_keep_ranks_in_step(world: Workers, tmp_path: object) -> None:
    """Between two barriers every rank sees all files of the step, and none of the next."""
    world.run(_barrier_steps, str(tmp_path))


def _barrier_steps(folder: str) -> None:
    import os

    for step in range(20):
        open(f"{folder}/{step}-{hvd.rank()}", "x").close()
        hvd.barrier()
        seen = sorted(os.listdir(folder))
        assert len(seen) == (step + 1) * hvd.size(), seen
        hvd.barrier()


@on_worlds(2, 3)
def test_barrier_with_operations_in_flight(world: Workers) -> None:
    world.run(_barrier_among_operations)


def _barrier_among_operations() -> None:
    handles = [hvd.allreduce_async_(np.ones(10_000), name=f"flight.{i}", op=hvd.Sum) for i in range(20)]
    hvd.barrier()
    for handle in handles:
        assert np.all(hvd.synchronize(handle) == hvd.size())
