"""Reductions with all their options: compression, ``tf.IndexedSlices``, devices, the old ``average``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from horovod._core.compression import wire_code
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import Average, Sum, known, reduction_of
from horovod.tensorflow import _raw
from horovod.tensorflow.compression import Compression, Compressor

Tensor = Any


def _on(device: str) -> Any:
    return tf.device(device) if device else nullcontext()


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Tensor:
    """``tensor`` reduced over all ranks, as a new tensor.

    ``op`` is ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``; integers are
    averaged toward zero. The factors multiply the input before, and the result after the reduction. The
    gradient is reduced in the same way. Of ``tf.IndexedSlices`` the values and indices of all ranks are
    gathered, and the values divided if ``op`` is ``Average``.
    """
    op = reduction_of(op, average, process_set.process_set_id)
    if isinstance(tensor, tf.IndexedSlices):
        with _on(device_sparse):
            _check_sparse(op, prescale_factor, postscale_factor)
            return _gathered([tensor], op, name, process_set, ignore_name_scope)[0]
    with _on(device_dense):
        inputs, contexts, wire = _compressed([tensor], compression)
        reduced = _raw._allreduce(
            inputs[0],
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            wire=wire,
        )
        return _decompressed([reduced], compression, contexts)[0]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """:func:`allreduce` of several tensors as one operation (those that are sparse: as another)."""
    op = reduction_of(op, average, process_set.process_set_id)
    given = list(tensors)
    sparse = [i for i, tensor in enumerate(given) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(given)) if i not in set(sparse)]
    results: list[Tensor] = [None] * len(given)
    if sparse:
        with _on(device_sparse):
            _check_sparse(op, prescale_factor, postscale_factor)
            slices = [given[i] for i in sparse]
            for i, one in zip(
                sparse, _gathered(slices, op, name, process_set, ignore_name_scope), strict=True
            ):
                results[i] = one
    if dense or not sparse:
        with _on(device_dense):
            inputs, contexts, wire = _compressed([given[i] for i in dense], compression)
            reduced = _raw._grouped_allreduce(
                inputs,
                name=name,
                op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                ignore_name_scope=ignore_name_scope,
                process_set=process_set,
                wire=wire,
            )
            for i, one in zip(dense, _decompressed(reduced, compression, contexts), strict=True):
                results[i] = one
    return results


def reducescatter(
    tensor: Tensor,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of the reduced ``tensor``: ``Sum`` or ``Average``.

    Rows are dealt out in the order of ranks; if they do not divide, the first ranks get one more. The
    gradient is gathered from all ranks, and multiplied by their number if ``op`` is ``Sum``.
    """
    _refuse_sparse([tensor], "reducescatter")
    with _on(device_dense):
        inputs, contexts, wire = _compressed([tensor], compression)
        rows = _raw._reducescatter(
            inputs[0],
            name=name,
            op=known(op),
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            wire=wire,
        )
        return _decompressed([rows], compression, contexts)[0]


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Tensor]:
    """:func:`reducescatter` of several tensors as one operation."""
    _refuse_sparse(tensors, "grouped_reducescatter")
    with _on(device_dense):
        inputs, contexts, wire = _compressed(tensors, compression)
        rows = _raw._grouped_reducescatter(
            inputs,
            name=name,
            op=known(op),
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            wire=wire,
        )
        return _decompressed(rows, compression, contexts)


def _compressed(
    tensors: Sequence[Tensor], compression: type[Compressor]
) -> tuple[list[Tensor], list[Any], int]:
    """What travels, what is needed to undo it, and the engine's number of a compression that it does."""
    wire = wire_code(compression)
    if wire is not None:
        return list(tensors), [], wire
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs], 0


def _decompressed(tensors: list[Tensor], compression: type[Compressor], contexts: list[Any]) -> list[Tensor]:
    if wire_code(compression) is not None:
        return tensors
    pairs = zip(tensors, contexts, strict=True)
    return [compression.decompress(tensor, context) for tensor, context in pairs]


def _check_sparse(op: int, prescale: float, postscale: float) -> None:
    if op not in (Average, Sum):
        raise NotImplementedError(
            "tf.IndexedSlices can be reduced by Average and Sum only; make the tensor dense, for example "
            "with sparse_as_dense=True or tf.convert_to_tensor()."
        )
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            "tf.IndexedSlices cannot be scaled by prescale_factor or postscale_factor; multiply the values."
        )


def _refuse_sparse(tensors: Sequence[Tensor], operation: str) -> None:
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError(f"{operation} takes no tf.IndexedSlices; use tf.convert_to_tensor().")


def _gathered(
    slices: list[Any], op: int, name: str | None, process_set: ProcessSet, ignore_name_scope: bool
) -> list[Any]:
    """The slices of all ranks."""
    tensors = [one.values for one in slices] + [one.indices for one in slices]
    if len(slices) == 1:
        names = (None, None) if name is None else (f"{name}.values", f"{name}.indices")
        gathered = [
            _raw.allgather(tensor, part, ignore_name_scope, process_set)
            for tensor, part in zip(tensors, names, strict=True)
        ]
    else:
        part = None if name is None else f"{name}.slices"
        gathered = _raw.grouped_allgather(tensors, part, ignore_name_scope, process_set)
    values, indices = gathered[: len(slices)], gathered[len(slices) :]
    if op == Average:
        size = _raw.size_op(_raw.set_id(process_set))
        values = [value / tf.cast(size, value.dtype) for value in values]
    return [
        tf.IndexedSlices(value, index, dense_shape=one.dense_shape)
        for value, index, one in zip(values, indices, slices, strict=True)
    ]
