"""Collective operations that check their results against NumPy.

Each is started, which gives what is left to do: wait, and compare. A fault may come between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import horovod.numpy as hvd

Array = npt.NDArray[Any]
Finish = Callable[[], None]

evens = hvd.ProcessSet([0])
"""Ranks 0, 2, ...: made anew by :func:`join_world`."""


class WrongResult(Exception):
    """An operation has given something else than NumPy."""


def join_world(size: int) -> None:
    """``init()``, with the process set that one of the operations uses."""
    global evens
    evens = hvd.ProcessSet(list(range(0, size, 2)))
    hvd.init(process_sets=[evens])


def start(operation: str, rank: int, size: int, step: int) -> Finish:
    """Starts an operation; what it returns waits for the end and checks it."""
    return _STARTS[operation](rank, size, step)


def _tensor(rank: int, step: int, count: int, salt: int = 0) -> Array:
    """Small integers, so that sums are exact in any order."""
    return ((np.arange(count) * (rank + 2) + step * 7 + salt) % 97 - 48).astype(np.float32)


def _sum(ranks: range, step: int, count: int, salt: int = 0) -> Array:
    return np.sum([_tensor(rank, step, count, salt) for rank in ranks], axis=0, dtype=np.float32)


def _compare(got: Any, expected: Array, what: str) -> None:
    if not np.array_equal(got, expected):
        raise WrongResult(f"{what}: {np.asarray(got).ravel()[:5]} is not {expected.ravel()[:5]} ...")


def _allreduce(count: int) -> Callable[[int, int, int], Finish]:
    def begin(rank: int, size: int, step: int) -> Finish:
        handle = hvd.allreduce_async(_tensor(rank, step, count), op=hvd.Sum, name=f"sum.{count}")
        return lambda: _compare(hvd.synchronize(handle), _sum(range(size), step, count), "allreduce")

    return begin


def _in_place(rank: int, size: int, step: int) -> Finish:
    tensor = _tensor(rank, step, 70_000)
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="in place")

    def finish() -> None:
        hvd.synchronize(handle)
        _compare(tensor, _sum(range(size), step, 70_000), "allreduce_")

    return finish


def _many(rank: int, size: int, step: int) -> Finish:
    counts = [1 << (i % 14) for i in range(40)]
    handles = [
        hvd.allreduce_async(_tensor(rank, step, count, i), op=hvd.Sum, name=f"many.{i}")
        for i, count in enumerate(counts)
    ]

    def finish() -> None:
        for i, (handle, count) in enumerate(zip(handles, counts, strict=True)):
            _compare(hvd.synchronize(handle), _sum(range(size), step, count, i), f"many.{i}")

    return finish


def _grouped(rank: int, size: int, step: int) -> Finish:
    counts = (3, 5000, 1)
    tensors = [_tensor(rank, step, count, i) for i, count in enumerate(counts)]
    handle = hvd.grouped_allreduce_async(tensors, op=hvd.Sum, name="group")

    def finish() -> None:
        for i, (result, count) in enumerate(zip(hvd.synchronize(handle), counts, strict=True)):
            _compare(result, _sum(range(size), step, count, i), f"group, tensor {i}")

    return finish


def _broadcast(rank: int, size: int, step: int) -> Finish:
    root = step % size
    handle = hvd.broadcast_async(_tensor(rank, step, 40_000), root, name=f"root.{root}")
    return lambda: _compare(hvd.synchronize(handle), _tensor(root, step, 40_000), "broadcast")


def _rows(rank: int, step: int, rows: int) -> Array:
    return _tensor(rank, step, rows * 1000).reshape(rows, 1000)


def _allgather(rank: int, size: int, step: int) -> Finish:
    handle = hvd.allgather_async(_rows(rank, step, rank + 1 + step % 2), name="gather")
    expected = np.concatenate([_rows(r, step, r + 1 + step % 2) for r in range(size)])
    return lambda: _compare(hvd.synchronize(handle), expected, "allgather")


def _alltoall(rank: int, size: int, step: int) -> Finish:
    # Every rank sends r + 1 rows to rank r.
    splits = [r + 1 for r in range(size)]
    begin, end = sum(splits[:rank]), sum(splits[: rank + 1])
    handle = hvd.alltoall_async(_rows(rank, step, sum(splits)), splits=splits, name="exchange")
    expected = np.concatenate([_rows(r, step, sum(splits))[begin:end] for r in range(size)])

    def finish() -> None:
        result = hvd.synchronize(handle)
        _compare(result[0] if isinstance(result, tuple) else result, expected, "alltoall")

    return finish


def _reducescatter(rank: int, size: int, step: int) -> Finish:
    handle = hvd.reducescatter_async(_rows(rank, step, size * 3), op=hvd.Sum, name="scatter")
    total = np.sum([_rows(r, step, size * 3) for r in range(size)], axis=0, dtype=np.float32)
    expected = total[rank * 3 : rank * 3 + 3]
    return lambda: _compare(hvd.synchronize(handle), expected, "reducescatter")


def _barrier(rank: int, size: int, step: int) -> Finish:  # noqa: ARG001
    return hvd.barrier


def _objects(rank: int, size: int, step: int) -> Finish:
    def finish() -> None:
        found = hvd.allgather_object({"rank": rank, "step": step})
        if found != [{"rank": r, "step": step} for r in range(size)]:
            raise WrongResult(f"allgather_object: {found}")

    return finish


def _evens(rank: int, size: int, step: int) -> Finish:
    if rank % 2:
        return lambda: None
    handle = hvd.allreduce_async(_tensor(rank, step, 30_000), op=hvd.Sum, name="evens", process_set=evens)
    return lambda: _compare(hvd.synchronize(handle), _sum(range(0, size, 2), step, 30_000), "evens")


_STARTS: dict[str, Callable[[int, int, int], Finish]] = {
    "small": _allreduce(4),
    "large": _allreduce(1 << 18),
    "many": _many,
    "in place": _in_place,
    "grouped": _grouped,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
    "barrier": _barrier,
    "objects": _objects,
    "evens": _evens,
}
