"""Operations that reduce: allreduce, reducescatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._core.compression import Compression, Compressor, engine_code, wire_code
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import SIMPLE, Average, known, reduction_of
from horovod._core.runtime import engine
from horovod.numpy._outputs import Wrap, empty_like

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Done = Callable[[BaseException | None], object]


def allreduce(
    tensor: npt.ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """``tensor`` reduced over all ranks, as a new array.

    ``op`` is ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``; integers are
    averaged toward zero. The factors multiply the input before, and the result after the reduction.
    """
    array = np.asarray(tensor, order="C")
    output = empty_like(array)
    if average is not None or op not in SIMPLE:
        op = reduction_of(op, average, process_set.process_set_id)
    wire = wire_code(compression)
    if wire is None:
        array, context = compression.compress(array)
        output = empty_like(array)
    engine().allreduce(
        name, array, output, op, prescale_factor, postscale_factor, wire or 0, process_set.process_set_id
    )
    return output if wire is not None else compression.decompress(output, context)


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> Array:
    """:func:`allreduce` in place; returns ``tensor``."""
    if average is not None or op not in SIMPLE:
        op = reduction_of(op, average, process_set.process_set_id)
    engine().allreduce(
        name,
        tensor,
        tensor,
        op,
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )
    return tensor


def allreduce_async(
    tensor: npt.ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
    callback: Done | None = None,
) -> int:
    """Starts an :func:`allreduce` and returns its handle.

    ``tensor`` must not be changed before the operation is done. ``callback(error or None)`` is called on
    another thread when it is; the handle must be synchronized all the same. It may not call :func:`init` or
    :func:`shutdown`.
    """
    array = np.asarray(tensor, order="C")
    output = empty_like(array)
    if average is not None or op not in SIMPLE:
        op = reduction_of(op, average, process_set.process_set_id)
    return engine().allreduce_async(
        name,
        array,
        output,
        op,
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
        callback,
    )


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
    callback: Done | None = None,
) -> int:
    """:func:`allreduce_async` in place."""
    if average is not None or op not in SIMPLE:
        op = reduction_of(op, average, process_set.process_set_id)
    return engine().allreduce_async(
        name,
        tensor,
        tensor,
        op,
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
        callback,
    )


def grouped_allreduce(
    tensors: Sequence[npt.ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """:func:`allreduce` of several tensors as one operation: all of them, or none."""
    arrays = [np.asarray(tensor, order="C") for tensor in tensors]
    op = reduction_of(op, average, process_set.process_set_id)
    wire = wire_code(compression)
    compressed = [compression.compress(array) for array in arrays] if wire is None else []
    if wire is None:
        arrays = [array for array, _ in compressed]
    outputs: list[Array] = engine().grouped_allreduce(
        name,
        arrays,
        [empty_like(array) for array in arrays],
        op,
        prescale_factor,
        postscale_factor,
        wire or 0,
        process_set.process_set_id,
    )
    if wire is not None:
        return outputs
    return [
        compression.decompress(output, context)
        for output, (_, context) in zip(outputs, compressed, strict=True)
    ]


def grouped_allreduce_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> list[Array]:
    """:func:`grouped_allreduce` in place; returns the tensors."""
    arrays = list(tensors)
    engine().grouped_allreduce(
        name,
        arrays,
        arrays,
        reduction_of(op, average, process_set.process_set_id),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )
    return arrays


def grouped_allreduce_async(
    tensors: Sequence[npt.ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
    callback: Done | None = None,
) -> int:
    """Starts a :func:`grouped_allreduce` and returns its one handle."""
    arrays = [np.asarray(tensor, order="C") for tensor in tensors]
    return engine().grouped_allreduce_async(
        name,
        arrays,
        [empty_like(array) for array in arrays],
        reduction_of(op, average, process_set.process_set_id),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
        callback,
    )


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
    callback: Done | None = None,
) -> int:
    """:func:`grouped_allreduce_async` in place."""
    arrays = list(tensors)
    return engine().grouped_allreduce_async(
        name,
        arrays,
        arrays,
        reduction_of(op, average, process_set.process_set_id),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
        callback,
    )


def reducescatter(
    tensor: npt.ArrayLike,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """This rank's rows of the reduced ``tensor``: ``Sum`` or ``Average``.

    Rows are dealt out in the order of ranks; if they do not divide, the first ranks get one more.
    """
    array = np.asarray(tensor, order="C")
    wire = wire_code(compression)
    if wire is None:
        array, context = compression.compress(array)
    rows: Array = engine().reducescatter(
        name,
        array,
        Wrap([array]),
        known(op),
        prescale_factor,
        postscale_factor,
        wire or 0,
        process_set.process_set_id,
    )
    return rows if wire is not None else compression.decompress(rows, context)


def reducescatter_async(
    tensor: npt.ArrayLike,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """Starts a :func:`reducescatter` and returns its handle."""
    array = np.asarray(tensor, order="C")
    return engine().reducescatter_async(
        name,
        array,
        Wrap([array]),
        known(op),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )


def grouped_reducescatter(
    tensors: Sequence[npt.ArrayLike],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """:func:`reducescatter` of several tensors as one operation."""
    arrays = [np.asarray(tensor, order="C") for tensor in tensors]
    rows: list[Array] = engine().grouped_reducescatter(
        name,
        arrays,
        Wrap(arrays),
        known(op),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )
    return rows


def grouped_reducescatter_async(
    tensors: Sequence[npt.ArrayLike],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """Starts a :func:`grouped_reducescatter` and returns its handle."""
    arrays = [np.asarray(tensor, order="C") for tensor in tensors]
    return engine().grouped_reducescatter_async(
        name,
        arrays,
        Wrap(arrays),
        known(op),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )
