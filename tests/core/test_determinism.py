"""The same bits on all ranks and from run to run, whatever the timing and the contents of buckets.

The sum of the random tensors here depends on the order of additions; the one right order is
((r0 + r1) + r2) + r3 in the tensors' own type.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support.marks import on_worlds
from tests.support.oracle import Array, assert_all_equal, assert_bytes, canonical_sum
from tests.support.world import Workers

COUNTS = [1, 3, 15, 511, 512, 513, 1000, 4097, 16_384, 65_535, 65_536, 65_537, 150_001]
TENSORS = 26


def _tensor(index: int, rank: int, dtype: str = "float32") -> Array:
    random = np.random.default_rng([index, rank])
    count = COUNTS[index % len(COUNTS)]
    return (random.standard_normal(count) * 10.0 ** random.integers(-6, 7, count)).astype(dtype)


def _expected(size: int, dtype: str = "float32") -> Array:
    sums = [canonical_sum([_tensor(index, rank, dtype) for rank in range(size)]) for index in range(TENSORS)]
    return np.concatenate(sums)


def _shuffled(seed: int, dtype: str) -> Array:
    """Submits the tensors in an order and in ways that are this rank's own."""
    own = np.random.default_rng([seed, hvd.rank()])
    results: dict[int, Array] = {}
    handles: dict[int, int] = {}
    order = own.permutation(TENSORS)
    for position, index in enumerate(order):
        tensor = _tensor(int(index), hvd.rank(), dtype)
        start = hvd.allreduce_async_ if own.random() < 0.5 else hvd.allreduce_async
        handles[index] = start(tensor, name=f"shuffled.{dtype}.{index}", op=hvd.Sum)
        if own.random() < 0.2:
            time.sleep(own.random() * 0.003)
        if own.random() < 0.1:
            hvd.poll(handles[order[own.integers(position + 1)]])
    for index in own.permutation(TENSORS):
        results[index] = hvd.synchronize(handles[index])
    return np.concatenate([results[index] for index in range(TENSORS)])


@on_worlds(2, 3, 4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(5))
def test_any_order_and_timing(world: Workers, seed: int, dtype: str) -> None:
    assert_bytes(world.run(_shuffled, seed, dtype), _expected(len(world.pids), dtype))


@on_worlds(3, HOROVOD_FUSION_THRESHOLD="0")
@pytest.mark.parametrize("seed", range(3))
def test_without_fusion(world: Workers, seed: int) -> None:
    assert_bytes(world.run(_shuffled, seed, "float32"), _expected(3))


@on_worlds(2, 3, HOROVOD_FUSION_THRESHOLD="70000")
@pytest.mark.parametrize("seed", range(3))
def test_with_small_buckets(world: Workers, seed: int) -> None:
    assert_bytes(world.run(_shuffled, seed, "float32"), _expected(len(world.pids)))


@on_worlds(2, 3, HOROVOD_CYCLE_TIME="3")
@pytest.mark.parametrize("seed", range(3))
def test_with_slow_cycles(world: Workers, seed: int) -> None:
    assert_bytes(world.run(_shuffled, seed, "float32"), _expected(len(world.pids)))


@on_worlds(2, 3, 4, 7)
def test_one_by_one(world: Workers) -> None:
    assert_bytes(world.run(_one_by_one), _expected(len(world.pids)))


def _one_by_one() -> Array:
    return np.concatenate([hvd.allreduce(_tensor(index, hvd.rank()), op=hvd.Sum) for index in range(TENSORS)])


def _average(form: str) -> Array:
    count = {"inline": 400, "plane": 40_000}[form]
    random = np.random.default_rng(hvd.rank())
    tensor = random.standard_normal(40_000).astype("f4")
    parts = [hvd.allreduce(part, prescale_factor=0.3) for part in np.split(tensor, 40_000 // count)]
    return np.concatenate(parts)


@on_worlds(3, 4)
def test_scaled_averages_do_not_depend_on_the_path(world: Workers) -> None:
    """Cut into pieces that travel with the announcements, or whole: the same bits."""
    inline, plane = world.run(_average, "inline"), world.run(_average, "plane")
    assert_bytes(inline + plane, plane[0])


SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 1e-38, -1.1e-38, 3.4e38, -3.4e38, 1.0, -1.0],
    "f4",
)


def _special(rank: int, size: int, count: int) -> Array:
    """Every combination of special values over the ranks, cut or repeated to ``count``."""
    combinations = np.stack(np.meshgrid(*[SPECIAL] * min(size, 3), indexing="ij"), -1).reshape(
        -1, min(size, 3)
    )
    return np.resize(combinations[:, rank % combinations.shape[1]], count)


@contextmanager
def _flush_to_zero(wanted: bool) -> Iterator[None]:
    """Sets the CPU's flush-to-zero and denormals-are-zero in this thread, by four bytes of machine code."""
    if not wanted:
        yield
        return
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(bytes.fromhex("0fae17c3"))  # ldmxcsr [rdi]; ret
        anchor = ctypes.c_char.from_buffer(page)
        load = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))(ctypes.addressof(anchor))
        load(ctypes.c_uint32(0x9FC0))
        try:
            assert np.float32(1e-45) * np.float32(1) == 0, "the mode was not set"
            yield
        finally:
            load(ctypes.c_uint32(0x1F80))
            del anchor


def _one_nan(array: Array) -> Array:
    return np.where(np.isnan(array), np.float32(np.nan), array)


def _reduce_special(count: int, flushing_rank: int) -> Array:
    tensor = _special(hvd.rank(), hvd.size(), count)
    with _flush_to_zero(hvd.rank() == flushing_rank):
        return hvd.allreduce(tensor, op=hvd.Sum)


@on_worlds(2, 3, 4)
@pytest.mark.parametrize("count", [14 * 14, 14**3 + 5], ids=["inline", "plane"])
@pytest.mark.parametrize("flushing_rank", [-1, 0, 1])
def test_special_values(world: Workers, count: int, flushing_rank: int) -> None:
    """Also where a rank's own thread flushes denormals to zero."""
    if flushing_rank >= 0 and platform.machine() != "x86_64":
        pytest.skip("sets x86's control word")
    size = len(world.pids)
    expected = canonical_sum([_special(rank, size, count) for rank in range(size)])
    results = world.run(_reduce_special, count, flushing_rank)
    assert_bytes(results, _one_nan(expected))  # there is only one NaN, wherever it comes from
    assert_all_equal(results)
