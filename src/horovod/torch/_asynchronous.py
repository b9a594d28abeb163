"""Operations that return a handle, and those that work in place: nothing here is differentiable."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from horovod._core.compression import engine_code
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import SIMPLE, Average, known, reduction_of
from horovod.torch._checked import engine_for, engine_for_group, members
from horovod.torch._eager import eager
from horovod.torch._outputs import Wrap, empty_like
from horovod.torch.compression import Compression, Compressor

Tensor = torch.Tensor


@eager
def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """Starts an :func:`allreduce` into a new tensor and returns its handle.

    ``tensor`` must not be changed before the operation is done.
    """
    if average is not None or op not in SIMPLE:
        op = reduction_of(op, average, process_set.process_set_id)
    return engine_for(tensor).allreduce_async(
        name,
        tensor,
        empty_like(tensor),
        op,
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )


@eager
def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """:func:`allreduce_async` in place."""
    if average is not None or op not in SIMPLE:
        op = reduction_of(op, average, process_set.process_set_id)
    return engine_for(tensor).allreduce_async(
        name,
        tensor,
        tensor,
        op,
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )


@eager
def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> Tensor:
    """:func:`allreduce` in place; returns ``tensor``."""
    if average is not None or op not in SIMPLE:
        op = reduction_of(op, average, process_set.process_set_id)
    engine_for(tensor).allreduce(
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


@eager
def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """Starts a :func:`grouped_allreduce` and returns its one handle, whose result is a tuple."""
    inputs = members(tensors)
    return engine_for_group(inputs).grouped_allreduce_async(
        name,
        inputs,
        [empty_like(tensor) for tensor in inputs],
        reduction_of(op, average, process_set.process_set_id),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )


@eager
def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """:func:`grouped_allreduce_async` in place."""
    inputs = members(tensors)
    return engine_for_group(inputs).grouped_allreduce_async(
        name,
        inputs,
        inputs,
        reduction_of(op, average, process_set.process_set_id),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )


@eager
def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> tuple[Tensor, ...]:
    """:func:`grouped_allreduce` in place; returns the tensors."""
    inputs = members(tensors)
    engine_for_group(inputs).grouped_allreduce(
        name,
        inputs,
        inputs,
        reduction_of(op, average, process_set.process_set_id),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )
    return tuple(inputs)


@eager
def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts an :func:`allgather` and returns its handle."""
    return engine_for(tensor).allgather_async(name, tensor, Wrap([tensor]), process_set.process_set_id)


@eager
def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a :func:`grouped_allgather` and returns its handle."""
    inputs = members(tensors)
    return engine_for_group(inputs).grouped_allgather_async(
        name, inputs, Wrap(inputs), process_set.process_set_id
    )


@eager
def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a :func:`broadcast` and returns its handle."""
    return engine_for(tensor).broadcast_async(
        name, tensor, empty_like(tensor), root_rank, process_set.process_set_id
    )


@eager
def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """:func:`broadcast_async` in place."""
    return engine_for(tensor).broadcast_async(name, tensor, tensor, root_rank, process_set.process_set_id)


@eager
def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """:func:`broadcast` in place; returns ``tensor``."""
    engine_for(tensor).broadcast(name, tensor, tensor, root_rank, process_set.process_set_id)
    return tensor


@eager
def alltoall_async(
    tensor: Tensor,
    splits: Sequence[int] | Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an :func:`alltoall` and returns its handle, whose result always has the received splits."""
    return engine_for(tensor).alltoall_async(
        name, tensor, rows_to_send(splits), Wrap([tensor]), process_set.process_set_id
    )


@eager
def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """Starts a :func:`reducescatter` and returns its handle."""
    return engine_for(tensor).reducescatter_async(
        name,
        tensor,
        Wrap([tensor]),
        known(op),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )


@eager
def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """Starts a :func:`grouped_reducescatter` and returns its handle."""
    inputs = members(tensors)
    return engine_for_group(inputs).grouped_reducescatter_async(
        name,
        inputs,
        Wrap(inputs),
        known(op),
        prescale_factor,
        postscale_factor,
        engine_code(compression),
        process_set.process_set_id,
    )


def rows_to_send(splits: Sequence[int] | Tensor | None) -> list[int] | None:
    """The splits of an alltoall as the engine takes them."""
    if splits is None:
        return None
    if isinstance(splits, Tensor):
        if splits.dim() != 1 or splits.dtype != torch.int32:
            raise ValueError(
                f"The splits of an alltoall must be a list of integers or a tensor of one dimension and type "
                f"torch.int32, not one of {splits.dim()} dimensions and {splits.dtype}."
            )
        counts: list[int] = splits.tolist()
        return counts
    try:
        return [operator.index(count) for count in splits]
    except TypeError:
        raise ValueError(f"The splits of an alltoall must be a list of integers, not {splits!r}.") from None
