"""One measured call of a peer, what goes into it, and whether what comes out is right.

Every input is cut into as many blocks as there are ranks, each with a value of its own, so that a block that
went to the wrong place shows.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.base import Array, Compressing, Format, Library, Operation, Peer, Place

Step = Callable[[], tuple[int, Any]]  # when its submission ended, and what it returned

SAMPLE = 997  # every so-manieth element of a result is looked at


class WrongResult(Exception):
    """A peer returned something else than it should: its times are worth nothing."""


def array(length: int, format: Format, rank: int, size: int) -> Array:
    """What `rank` of `size` puts in: `length` bytes."""
    dtype = _dtype(format)
    values = _values(size, max(1, length // dtype.itemsize))[rank].astype(dtype)
    return np.repeat(values, max(1, length // dtype.itemsize // values.size))


def step(peer: Peer, tensors: list[Any], place: Place, operation: Operation, format: Format) -> Step:
    """One call: of one tensor synchronously, of several asynchronously."""
    if not isinstance(peer, Library):
        return _nothing_returned(peer.in_place, tensors[0])
    if len(tensors) > 1:
        return _batch(peer, tensors, place)
    if format == "fp16 wire":
        assert isinstance(peer, Compressing)
        return _nothing_returned(peer.compressed, tensors[0])
    if operation == "broadcast":
        return _nothing_returned(peer.broadcast, tensors[0])
    if operation == "allreduce":
        call = peer.out_of_place
        return _nothing_returned(peer.in_place, tensors[0]) if place == "in" else _returning(call, tensors[0])
    calls = {"allgather": peer.allgather, "alltoall": peer.alltoall, "reducescatter": peer.reducescatter}
    return _returning(calls[operation], tensors[0])


def check(peer: Peer, operation: Operation, given: list[Array], result: Any) -> None:
    """Raise if the first call's result, or in place the last tensor given, is not what it should be."""
    if not peer.communicates or (result is None and len(given) > 1 and _untouched(peer, given[-1])):
        return
    found = np.asarray(given[-1] if result is None else result)
    count = given[-1].size
    lengths = {"allgather": count * peer.size, "reducescatter": count // peer.size}
    if found.size != lengths.get(operation, count):
        raise WrongResult(f"{peer.name} rank {peer.rank}: {operation} gave {found.size} elements of {count}")
    expected = _expected(operation, peer.rank, peer.size, count)
    blocks = found.reshape(expected.size, -1)
    if any((sample != expected[:, None]).any() for sample in (blocks[:, ::SAMPLE], blocks[:, -1:])):
        raise WrongResult(
            f"{peer.name} rank {peer.rank}: {operation} should give blocks of {expected.tolist()}, "
            f"which end in {[float(block[-1]) for block in blocks]}"
        )


def _nothing_returned(call: Callable[[Any, str], Any], tensor: Any) -> Step:
    def run() -> tuple[int, Any]:
        call(tensor, "tensor")
        return 0, None

    return run


def _returning(call: Callable[[Any, str], Any], tensor: Any) -> Step:
    return lambda: (0, call(tensor, "tensor"))


def _batch(peer: Library, tensors: list[Any], place: Place) -> Step:
    names = [f"tensor.{index}" for index in range(len(tensors))]
    submit, wait, now = peer.submit, peer.wait, time.monotonic_ns

    def run() -> tuple[int, Any]:
        handles = [submit(item, name, place) for item, name in zip(tensors, names, strict=True)]
        at_submit = now()
        for handle in handles:
            wait(handle)
        return at_submit, None

    return run


def _values(size: int, count: int) -> npt.NDArray[np.float32]:
    """A row per rank, a column per block of its input; small enough for exact sums in any format."""
    blocks = size if count % size == 0 else 1
    return np.arange(1, size * blocks + 1, dtype=np.float32).reshape(size, blocks)


def _expected(operation: Operation, rank: int, size: int, count: int) -> npt.NDArray[np.float32]:
    """The values of the blocks of the result."""
    values = _values(size, count)
    total = np.add.reduce(values, axis=0, keepdims=True)
    blocks = {
        "allreduce": total,
        "allgather": values,
        "broadcast": values[:1],
        "alltoall": values[:, rank : rank + 1],
        "reducescatter": total[:, rank : rank + 1],
    }
    return blocks[operation].ravel()


def _untouched(peer: Peer, given: Array) -> bool:
    """An out-of-place batch drops its results: there is nothing to look at."""
    return bool(given[-1] == _values(peer.size, given.size)[peer.rank, -1])


def _dtype(format: Format) -> np.dtype[Any]:
    if format == "bfloat16":
        bfloat16: type[Any] = importlib.import_module("ml_dtypes").bfloat16
        return np.dtype(bfloat16)
    return np.dtype(np.float16 if format == "float16" else np.float32)
