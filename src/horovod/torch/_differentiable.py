"""Operations that wait and return new tensors. Autograd goes through them, and so does ``torch.compile``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from horovod._core.compression import wire_code
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import SIMPLE, Average, known, reduction_of
from horovod.torch import _compiled, _gradients, _waiting
from horovod.torch._asynchronous import rows_to_send
from horovod.torch._checked import members
from horovod.torch.compression import Compression, Compressor

Tensor = torch.Tensor

differentiable: Any = _gradients
"""Their ``apply`` has no types in torch."""


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """``tensor`` reduced over all ranks, as a new tensor.

    ``op`` is ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``; integers are
    averaged toward zero. The factors multiply the input before, and the result after the reduction. The
    gradient is reduced in the same way.
    """
    if average is not None or op not in SIMPLE:
        op = reduction_of(op, average, process_set.process_set_id)
    wire = wire_code(compression)
    if wire is None:
        tensor, context = compression.compress(tensor)
    options = (name, op, prescale_factor, postscale_factor, wire or 0, process_set.process_set_id)
    if is_compiling():
        reduced: Tensor = _compiled.allreduce(tensor, *options)
    elif _needs_gradient(tensor):
        reduced = differentiable.Allreduce.apply(tensor, *options)
    else:
        reduced = _waiting.allreduce(tensor, *options)  # type: ignore[arg-type]
    if wire is None:
        reduced = compression.decompress(reduced, context)
    return reduced


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """:func:`allreduce` of several tensors as one operation: all of them, or none."""
    op = reduction_of(op, average, process_set.process_set_id)
    wire = wire_code(compression)
    inputs, contexts = _compressed(tensors, compression, wire)
    options = (op, prescale_factor, postscale_factor, wire or 0, process_set.process_set_id)
    if is_compiling():
        reduced = _compiled.grouped_allreduce(inputs, name, *options)
    elif _any_needs_gradient(inputs):
        reduced = list(differentiable.GroupedAllreduce.apply(*options, name, *inputs))
    else:
        reduced = _waiting.grouped_allreduce(inputs, name, *options)  # type: ignore[arg-type]
    return _decompressed(reduced, compression, wire, contexts)


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensors of all ranks, one after the other along the first dimension, which may differ.

    The gradient is the average over the ranks, of which each gets its own rows.
    """
    options = (name, process_set.process_set_id)
    if is_compiling():
        gathered: Tensor = _compiled.allgather(tensor, *options)
    elif _needs_gradient(tensor):
        gathered = differentiable.Allgather.apply(tensor, *options)
    else:
        gathered = _waiting.allgather(tensor, *options)  # type: ignore[arg-type]
    return gathered


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Tensor, ...]:
    """:func:`allgather` of several tensors as one operation."""
    inputs = members(tensors)
    if is_compiling():
        return tuple(_compiled.grouped_allgather(inputs, name, process_set.process_set_id))
    if _any_needs_gradient(inputs):
        gathered: tuple[Tensor, ...] = differentiable.GroupedAllgather.apply(
            name, process_set.process_set_id, *inputs
        )
        return gathered
    return tuple(_waiting.grouped_allgather(inputs, name, process_set.process_set_id))  # type: ignore[arg-type]


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The root's ``tensor``, on every rank, as a new tensor; on the others it gives type and shape.

    The root is a rank of the whole job, also in a process set. It alone gets a gradient: the average.
    """
    options = (root_rank, name, process_set.process_set_id)
    if is_compiling():
        output: Tensor = _compiled.broadcast(tensor, *options)
    elif _needs_gradient(tensor):
        output = differentiable.Broadcast.apply(tensor, *options)
    else:
        output = _waiting.broadcast(tensor, *options)  # type: ignore[arg-type]
    return output


def alltoall(
    tensor: Tensor,
    splits: Sequence[int] | Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Sends rows of ``tensor`` to every rank, and returns those that came, in the order of ranks.

    ``splits`` says how many rows go to each rank; with it, how many came from each is returned as well.
    Without it all get the same number.
    """
    options = (rows_to_send(splits), name, process_set.process_set_id)
    output: Tensor
    received: Tensor
    if is_compiling():
        output, received = _compiled.alltoall(tensor, *options)
    elif _needs_gradient(tensor):
        output, received = differentiable.Alltoall.apply(tensor, *options)
    else:
        output, received = _waiting.alltoall(tensor, *options)  # type: ignore[arg-type]
    if splits is None:
        return output
    return output, received.to(splits.device) if isinstance(splits, Tensor) else received


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of the reduced ``tensor``: ``Sum`` or ``Average``.

    Rows are dealt out in the order of ranks; if they do not divide, the first ranks get one more. The
    gradient is gathered from all ranks, and multiplied by their number if ``op`` is ``Sum``.
    """
    wire = wire_code(compression)
    if wire is None:
        tensor, context = compression.compress(tensor)
    options = (name, known(op), prescale_factor, postscale_factor, wire or 0, process_set.process_set_id)
    if is_compiling():
        rows: Tensor = _compiled.reducescatter(tensor, *options)
    elif _needs_gradient(tensor):
        rows = differentiable.Reducescatter.apply(tensor, *options)
    else:
        rows = _waiting.reducescatter(tensor, *options)  # type: ignore[arg-type]
    if wire is None:
        rows = compression.decompress(rows, context)
    return rows


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """:func:`reducescatter` of several tensors as one operation."""
    wire = wire_code(compression)
    inputs, contexts = _compressed(tensors, compression, wire)
    options = (known(op), prescale_factor, postscale_factor, wire or 0, process_set.process_set_id)
    if is_compiling():
        rows = _compiled.grouped_reducescatter(inputs, name, *options)
    elif _any_needs_gradient(inputs):
        rows = list(differentiable.GroupedReducescatter.apply(*options, name, *inputs))
    else:
        rows = _waiting.grouped_reducescatter(inputs, name, *options)  # type: ignore[arg-type]
    return _decompressed(rows, compression, wire, contexts)


def _needs_gradient(tensor: Tensor) -> bool:
    # What is no tensor is refused later, where all are looked at.
    return isinstance(tensor, Tensor) and tensor.requires_grad and torch.is_grad_enabled()


def _any_needs_gradient(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(_needs_gradient(tensor) for tensor in tensors)


def _compressed(
    tensors: Sequence[Tensor], compression: type[Compressor], wire: int | None
) -> tuple[list[Tensor], list[Any]]:
    """What travels, and what is needed to undo it: nothing, if the engine compresses."""
    inputs = members(tensors)
    if wire is not None:
        return inputs, []
    pairs = [compression.compress(tensor) for tensor in inputs]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


def _decompressed(
    tensors: list[Tensor], compression: type[Compressor], wire: int | None, contexts: list[Any]
) -> list[Tensor]:
    if wire is not None:
        return tensors
    pairs = zip(tensors, contexts, strict=True)
    return [compression.decompress(tensor, context) for tensor, context in pairs]
