"""Operations on values: numbers, arrays, tensors of the framework that Keras runs on."""

from __future__ import annotations

from typing import Any

from horovod._core.reduction import Average
from horovod._keras.backends import Backend

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def allreduce(
    backend: Backend,
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
) -> Any:
    """The value reduced over all ranks, as a tensor."""
    return backend.operations().allreduce(
        backend.tensor(value),
        average=average,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression or backend.compression().none,
    )


def allgather(backend: Backend, value: Any, name: str | None = None) -> Any:
    """The values of all ranks, one after the other."""
    return backend.operations().allgather(backend.tensor(value), name=name)


def broadcast(backend: Backend, value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's value."""
    return backend.operations().broadcast(backend.tensor(value), root_rank, name=name)


def reducescatter(backend: Backend, value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's part of the reduced value."""
    return backend.operations().reducescatter(backend.tensor(value), name=name, op=op)
