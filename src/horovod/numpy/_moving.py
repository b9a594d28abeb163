"""Operations that move arrays as they are: broadcast, allgather, alltoall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.runtime import engine
from horovod.numpy._outputs import Wrap, empty_like

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


def broadcast(
    tensor: npt.ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """The root's ``tensor``, on every rank, as a new array; on the others it gives type and shape.

    The root is a rank of the whole job, also in a process set.
    """
    array = np.asarray(tensor, order="C")
    output = empty_like(array)
    engine().broadcast(name, array, output, root_rank, process_set.process_set_id)
    return output


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """:func:`broadcast` in place; returns ``tensor``."""
    engine().broadcast(name, tensor, tensor, root_rank, process_set.process_set_id)
    return tensor


def broadcast_async(
    tensor: npt.ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a :func:`broadcast` and returns its handle."""
    array = np.asarray(tensor, order="C")
    return engine().broadcast_async(name, array, empty_like(array), root_rank, process_set.process_set_id)


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """:func:`broadcast_async` in place."""
    return engine().broadcast_async(name, tensor, tensor, root_rank, process_set.process_set_id)


def allgather(
    tensor: npt.ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """The tensors of all ranks, one after the other along the first dimension, which may differ."""
    array = np.asarray(tensor, order="C")
    gathered: Array = engine().allgather(name, array, Wrap([array]), process_set.process_set_id)
    return gathered


def allgather_async(
    tensor: npt.ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts an :func:`allgather` and returns its handle."""
    array = np.asarray(tensor, order="C")
    return engine().allgather_async(name, array, Wrap([array]), process_set.process_set_id)


def grouped_allgather(
    tensors: Sequence[npt.ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """:func:`allgather` of several tensors as one operation."""
    arrays = [np.asarray(tensor, order="C") for tensor in tensors]
    gathered: list[Array] = engine().grouped_allgather(name, arrays, Wrap(arrays), process_set.process_set_id)
    return gathered


def grouped_allgather_async(
    tensors: Sequence[npt.ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a :func:`grouped_allgather` and returns its handle."""
    arrays = [np.asarray(tensor, order="C") for tensor in tensors]
    return engine().grouped_allgather_async(name, arrays, Wrap(arrays), process_set.process_set_id)


def alltoall(
    tensor: npt.ArrayLike,
    splits: npt.ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Sends rows of ``tensor`` to every rank, and returns those that came, in the order of ranks.

    ``splits`` says how many rows go to each rank; with it, how many came from each is returned as well.
    Without it all get the same number.
    """
    array = np.asarray(tensor, order="C")
    received, counts = engine().alltoall(
        name, array, _splits(splits), Wrap([array]), process_set.process_set_id
    )
    return received if splits is None else (received, np.array(counts, np.int32))


def alltoall_async(
    tensor: npt.ArrayLike,
    splits: npt.ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an :func:`alltoall` and returns its handle, whose result always has the received splits."""
    array = np.asarray(tensor, order="C")
    return engine().alltoall_async(name, array, _splits(splits), Wrap([array]), process_set.process_set_id)


def _splits(splits: npt.ArrayLike | None) -> list[int] | None:
    if splits is None:
        return None
    counts = np.asarray(splits)
    if counts.ndim != 1 or (counts.size and counts.dtype.kind not in "iu"):
        raise ValueError(f"The splits of an alltoall must be a list of integers, not {splits!r}.")
    return [int(count) for count in counts]
