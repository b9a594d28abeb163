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


@custom_op("horovod::own_rows", mutates_args=())
def own_rows(tensor: Tensor, rows: int, process_set: int) -> Tensor:
    """The gradient of an allgather."""
    return _waiting.own_rows(tensor.contiguous(), rows, process_set)


@custom_op("horovod::broadcast", mutates_args=())
def broadcast(tensor: Tensor, root: int, name: str | None, process_set: int) -> Tensor:
    """See ``horovod.torch.broadcast``."""
    return _waiting.broadcast(tensor.contiguous(), root, name, process_set)


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


# What the results look like, for tracing.


@allreduce.register_fake
@broadcast.register_fake
def _(tensor: Tensor, *_options: Any) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@grouped_allreduce.register_fake
def _(tensors: Sequence[Tensor], *_options: Any) -> list[Tensor]:
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


@allgather.register_fake
def _(tensor: Tensor, *_options: Any) -> Tensor:
    return tensor.new_empty(torch.library.get_ctx().new_dynamic_size(), *tensor.shape[1:])


@own_rows.register_fake
def _(tensor: Tensor, rows: int, _process_set: int) -> Tensor:
    return tensor.new_empty(rows, *tensor.shape[1:])


@reducescatter.register_fake
def _(tensor: Tensor, *options: Any) -> Tensor:
    ranks, place = _waiting.size_of(options[-1]), _waiting.place_in(options[-1])
    rows = (tensor.shape[0] + ranks - 1 - place) // ranks
    return tensor.new_empty(rows, *tensor.shape[1:])


# Derivatives: the same formulas, made of these operations.


def _differentiate(operation: Any, function: Any) -> None:
    def backward(ctx: Any, *grads: Any) -> Any:
        return function.gradient(torch.ops.horovod, ctx, *grads)

    operation.register_autograd(backward, setup_context=function.setup_context)


_differentiate(allreduce, _gradients.Allreduce)
_differentiate(allgather, _gradients.Allgather)
_differentiate(own_rows, _gradients.OwnRows)
_differentiate(broadcast, _gradients.Broadcast)
_differentiate(reducescatter, _gradients.Reducescatter)


def _keep_options(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    ctx.options = inputs[2:]


def _reduce_gradients(ctx: Any, grads: list[Tensor]) -> Any:
    return torch.ops.horovod.grouped_allreduce(grads, None, *ctx.options), *[None] * 6


grouped_allreduce.register_autograd(_reduce_gradients, setup_context=_keep_options)
