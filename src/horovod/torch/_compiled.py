"""The operations as ``torch.ops.horovod``, which ``torch.compile`` keeps in its graph.

Calling them costs more than calling the engine, so only compiled code does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.library import custom_op

from horovod.torch import _gradients, _waiting

Tensor = torch.Tensor


@custom_op("horovod::allreduce", mutates_args=())
def allreduce(
    tensor: Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    wire: int,
    process_set: int,
) -> Tensor:
    """See ``horovod.torch.allreduce``."""
    return _waiting.allreduce(tensor.contiguous(), name, op, prescale, postscale, wire, process_set)


@custom_op("horovod::grouped_allreduce", mutates_args=())
def grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    wire: int,
    process_set: int,
) -> list[Tensor]:
    """See ``horovod.torch.grouped_allreduce``."""
    whole = [tensor.contiguous() for tensor in tensors]
    return _waiting.grouped_allreduce(whole, name, op, prescale, postscale, wire, process_set)


@custom_op("horovod::allgather", mutates_args=())
def allgather(tensor: Tensor, name: str | None, process_set: int) -> Tensor:
    """See ``horovod.torch.allgather``."""
    return _waiting.allgather(tensor.contiguous(), name, process_set)


@custom_op("horovod::grouped_allgather", mutates_args=())
def grouped_allgather(tensors: Sequence[Tensor], name: str | None, process_set: int) -> list[Tensor]:
    """See ``horovod.torch.grouped_allgather``."""
    return _waiting.grouped_allgather([tensor.contiguous() for tensor in tensors], name, process_set)


@custom_op("horovod::own_rows", mutates_args=())
def own_rows(tensor: Tensor, rows: int, process_set: int) -> Tensor:
    """The gradient of an allgather."""
    return _waiting.own_rows(tensor.contiguous(), rows, process_set)


@custom_op("horovod::broadcast", mutates_args=())
def broadcast(tensor: Tensor, root: int, name: str | None, process_set: int) -> Tensor:
    """See ``horovod.torch.broadcast``."""
    return _waiting.broadcast(tensor.contiguous(), root, name, process_set)


@custom_op("horovod::alltoall", mutates_args=())
def alltoall(
    tensor: Tensor, splits: Sequence[int] | None, name: str | None, process_set: int
) -> tuple[Tensor, Tensor]:
    """See ``horovod.torch.alltoall``."""
    return _waiting.alltoall(tensor.contiguous(), splits, name, process_set)


@custom_op("horovod::alltoall_back", mutates_args=())
def alltoall_back(tensor: Tensor, received: Tensor, rows: int, process_set: int) -> Tensor:
    """The gradient of an alltoall."""
    back, _ = _waiting.alltoall(tensor.contiguous(), received.tolist(), None, process_set)
    return _waiting.lengthened(back, rows)


@custom_op("horovod::reducescatter", mutates_args=())
def reducescatter(
    tensor: Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    wire: int,
    process_set: int,
) -> Tensor:
    """See ``horovod.torch.reducescatter``."""
    return _waiting.reducescatter(tensor.contiguous(), name, op, prescale, postscale, wire, process_set)


@custom_op("horovod::grouped_reducescatter", mutates_args=())
def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    wire: int,
    process_set: int,
) -> list[Tensor]:
    """See ``horovod.torch.grouped_reducescatter``."""
    whole = [tensor.contiguous() for tensor in tensors]
    return _waiting.grouped_reducescatter(whole, name, op, prescale, postscale, wire, process_set)


# What the results look like, for tracing.


@allreduce.register_fake
@broadcast.register_fake
def _(tensor: Tensor, *_options: Any) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@grouped_allreduce.register_fake
def _(tensors: Sequence[Tensor], *_options: Any) -> list[Tensor]:
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


def _some_rows_like(tensor: Tensor) -> Tensor:
    return tensor.new_empty(torch.library.get_ctx().new_dynamic_size(), *tensor.shape[1:])


@allgather.register_fake
def _(tensor: Tensor, *_options: Any) -> Tensor:
    return _some_rows_like(tensor)


@grouped_allgather.register_fake
def _(tensors: Sequence[Tensor], *_options: Any) -> list[Tensor]:
    return [_some_rows_like(tensor) for tensor in tensors]


@own_rows.register_fake
def _(tensor: Tensor, rows: int, _process_set: int) -> Tensor:
    return tensor.new_empty(rows, *tensor.shape[1:])


@alltoall.register_fake
def _(tensor: Tensor, _splits: Any, _name: str | None, process_set: int) -> tuple[Tensor, Tensor]:
    counts = tensor.new_empty(_waiting.size_of(process_set), dtype=torch.int32)
    return _some_rows_like(tensor), counts


@alltoall_back.register_fake
def _(tensor: Tensor, _received: Tensor, rows: int, _process_set: int) -> Tensor:
    return tensor.new_empty(rows, *tensor.shape[1:])


def _own_share_of(tensor: Tensor, process_set: int) -> Tensor:
    ranks, place = _waiting.size_of(process_set), _waiting.place_in(process_set)
    return tensor.new_empty((tensor.shape[0] + ranks - 1 - place) // ranks, *tensor.shape[1:])


@reducescatter.register_fake
def _(tensor: Tensor, *options: Any) -> Tensor:
    return _own_share_of(tensor, options[-1])


@grouped_reducescatter.register_fake
def _(tensors: Sequence[Tensor], *options: Any) -> list[Tensor]:
    return [_own_share_of(tensor, options[-1]) for tensor in tensors]


# Derivatives: the same formulas, made of these operations.


horovod = torch.ops.horovod


def _differentiate(operation: Any, function: Any) -> None:
    def backward(ctx: Any, *grads: Any) -> Any:
        return function.gradient(horovod, ctx, *grads)

    operation.register_autograd(backward, setup_context=function.setup_context)


_differentiate(allreduce, _gradients.Allreduce)
_differentiate(allgather, _gradients.Allgather)
_differentiate(own_rows, _gradients.OwnRows)
_differentiate(broadcast, _gradients.Broadcast)
_differentiate(reducescatter, _gradients.Reducescatter)


_differentiate(alltoall, _gradients.Alltoall)


# Groups: here the tensors are one argument.


def _keep_options(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    ctx.options = inputs[2:]


def _reduce_gradients(ctx: Any, grads: list[Tensor]) -> Any:
    return horovod.grouped_allreduce(grads, None, *ctx.options), *[None] * 6


def _keep_rows(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    ctx.rows, ctx.process_set = [tensor.shape[0] for tensor in inputs[0]], inputs[2]


def _own_rows_of_gradients(ctx: Any, grads: list[Tensor]) -> Any:
    pairs = zip(grads, ctx.rows, strict=True)
    return [horovod.own_rows(grad, rows, ctx.process_set) for grad, rows in pairs], None, None


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    ctx.factor, ctx.process_set = _gradients.factor_of(inputs[2], inputs[3], inputs[4], inputs[6]), inputs[6]


def _gather_gradients(ctx: Any, grads: list[Tensor]) -> Any:
    gathered = horovod.grouped_allgather(grads, None, ctx.process_set)
    return [tensor * ctx.factor for tensor in gathered], *[None] * 6


grouped_allreduce.register_autograd(_reduce_gradients, setup_context=_keep_options)
grouped_allgather.register_autograd(_own_rows_of_gradients, setup_context=_keep_rows)
grouped_reducescatter.register_autograd(_gather_gradients, setup_context=_keep_factor)
