"""Horovod for NumPy arrays: the reference frontend.

::

    import horovod.numpy as hvd

    hvd.init()
    gradient = hvd.allreduce(gradient, name="w")

Operations match across ranks by name; unnamed ones by the order in which they are called. Functions that end
in ``_`` work in place, those with ``_async`` return a handle for :func:`poll` and :func:`synchronize`.
"""

from __future__ import annotations

try:
    import numpy as np
except ImportError as error:
    raise ImportError("horovod.numpy needs NumPy; install it with: pip install numpy") from error

from typing import TYPE_CHECKING, Any

from horovod._core.basics import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horovod._core.reduction import AVAILABLE, Average, Sum, reduction_of
from horovod._core.runtime import engine
from horovod.exceptions import HorovodInternalError
from horovod.numpy._outputs import empty_like

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Done = Callable[[BaseException | None], object]

__all__ = [
    "Average",
    "HorovodInternalError",
    "Sum",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "counters",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def allreduce(
    tensor: npt.ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """The sum or average of ``tensor`` over all ranks, as a new array.

    ``op`` is :data:`Average` (the default) or :data:`Sum`; integers are averaged toward zero. The factors
    multiply the input before, and the result after the reduction.
    """
    array = np.asarray(tensor, order="C")
    output = empty_like(array)
    if average is not None or op not in AVAILABLE:
        op = reduction_of(op, average)
    engine().allreduce(name, array, output, op, prescale_factor, postscale_factor)
    return output


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """:func:`allreduce` in place; returns ``tensor``."""
    if average is not None or op not in AVAILABLE:
        op = reduction_of(op, average)
    engine().allreduce(name, tensor, tensor, op, prescale_factor, postscale_factor)
    return tensor


def allreduce_async(
    tensor: npt.ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    callback: Done | None = None,
) -> int:
    """Starts an :func:`allreduce` and returns its handle.

    ``tensor`` must not be changed before the operation is done. ``callback(error or None)`` is called on
    another thread when it is; the handle must be synchronized all the same. It may not call :func:`init` or
    :func:`shutdown`.
    """
    array = np.asarray(tensor, order="C")
    output = empty_like(array)
    if average is not None or op not in AVAILABLE:
        op = reduction_of(op, average)
    return engine().allreduce_async(name, array, output, op, prescale_factor, postscale_factor, callback)


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    callback: Done | None = None,
) -> int:
    """:func:`allreduce_async` in place."""
    if average is not None or op not in AVAILABLE:
        op = reduction_of(op, average)
    return engine().allreduce_async(name, tensor, tensor, op, prescale_factor, postscale_factor, callback)


def broadcast(tensor: npt.ArrayLike, root_rank: int, name: str | None = None) -> Array:
    """The root's ``tensor``, on every rank, as a new array; on the others it gives type and shape."""
    array = np.asarray(tensor, order="C")
    output = empty_like(array)
    engine().broadcast(name, array, output, root_rank)
    return output


def broadcast_(tensor: Array, root_rank: int, name: str | None = None) -> Array:
    """:func:`broadcast` in place; returns ``tensor``."""
    engine().broadcast(name, tensor, tensor, root_rank)
    return tensor


def broadcast_async(tensor: npt.ArrayLike, root_rank: int, name: str | None = None) -> int:
    """Starts a :func:`broadcast` and returns its handle."""
    array = np.asarray(tensor, order="C")
    return engine().broadcast_async(name, array, empty_like(array), root_rank)


def broadcast_async_(tensor: Array, root_rank: int, name: str | None = None) -> int:
    """:func:`broadcast_async` in place."""
    return engine().broadcast_async(name, tensor, tensor, root_rank)


def barrier() -> None:
    """Returns when every rank has called it."""
    engine().barrier()


def poll(handle: int) -> bool:
    """Whether the operation is done, so that :func:`synchronize` would not wait."""
    return engine().poll(handle)


def synchronize(handle: int) -> Array | None:
    """Waits for the operation and returns its result; ``None`` for a handle that was synchronized already."""
    result: Array | None = engine().synchronize(handle)
    return result


def counters() -> dict[str, int]:
    """What the engine has done since :func:`init`: totals of operations, plans, bytes and nanoseconds."""
    return engine().counters()
