"""The derivatives of the operations, for autograd.

Each class has the three functions that ``torch.autograd.Function`` and ``torch.library.custom_op`` both ask
for. ``calls`` are the operations to use: these differentiable ones again, so that second derivatives work, or
their counterparts that ``torch.compile`` can see.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from horovod._core import runtime
from horovod._core.reduction import Average, Sum
from horovod.torch import _waiting
from horovod.torch._waiting import size_of

Tensor = torch.Tensor
Function = torch.autograd.Function


class Allreduce(Function):
    """The gradient is reduced as the tensor was."""

    calls: Any

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _waiting.allreduce(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.options = inputs[2:]

    @classmethod
    def gradient(cls, calls: Any, ctx: Any, grad: Tensor) -> Any:
        return calls.allreduce(grad.contiguous(), None, *ctx.options), *[None] * 6

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Allreduce.gradient(eager, ctx, *grads)


class GroupedAllreduce(Function):
    """As of one tensor. The tensors come last: autograd wants them one by one."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        *options, name = arguments[:6]
        return tuple(_waiting.grouped_allreduce(arguments[6:], name, *options))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.options = inputs[:5]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        whole = [grad.contiguous() for grad in grads]
        return *[None] * 6, *eager.grouped_allreduce(*ctx.options, None, *whole)


class Allgather(Function):
    """Averaged; of that, the rows that this rank gave."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _waiting.allgather(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.rows, ctx.process_set = inputs[0].shape[0], inputs[2]

    @staticmethod
    def gradient(calls: Any, ctx: Any, grad: Tensor) -> Any:
        return calls.own_rows(grad.contiguous(), ctx.rows, ctx.process_set), None, None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Allgather.gradient(eager, ctx, *grads)


class OwnRows(Function):
    """Each rank's part comes from all of them."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _waiting.own_rows(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.process_set = inputs[2]

    @staticmethod
    def gradient(calls: Any, ctx: Any, grad: Tensor) -> Any:
        whole = calls.allgather(grad.contiguous(), None, ctx.process_set)
        return whole / size_of(ctx.process_set), None, None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return OwnRows.gradient(eager, ctx, *grads)


class GroupedAllgather(Function):
    """As of one tensor. The tensors come last."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return tuple(_waiting.grouped_allgather(arguments[2:], *arguments[:2]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.rows, ctx.process_set = [tensor.shape[0] for tensor in inputs[2:]], inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        pairs = zip(grads, ctx.rows, strict=True)
        parts = [eager.own_rows(grad.contiguous(), rows, ctx.process_set) for grad, rows in pairs]
        return None, None, *parts


class Broadcast(Function):
    """Averaged, for the root; the others gave nothing."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _waiting.broadcast(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.root, ctx.process_set = inputs[1], inputs[3]

    @staticmethod
    def gradient(calls: Any, ctx: Any, grad: Tensor) -> Any:
        averaged = calls.allreduce(grad.contiguous(), None, Average, 1.0, 1.0, 0, ctx.process_set)
        is_root = runtime.engine().rank == ctx.root
        # Part of the graph all the same: where second derivatives are taken, all ranks must take part.
        everywhere = torch.ones((), dtype=torch.bool, device=averaged.device)
        return averaged if is_root else averaged.masked_fill(everywhere, 0), None, None, None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Broadcast.gradient(eager, ctx, *grads)


class Alltoall(Function):
    """Every row goes back to where it came from."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _waiting.alltoall(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.rows, ctx.process_set = inputs[0].shape[0], inputs[3]
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def gradient(calls: Any, ctx: Any, grad: Tensor, *_others: Any) -> Any:
        (received,) = ctx.saved_tensors
        return calls.alltoall_back(grad.contiguous(), received, ctx.rows, ctx.process_set), None, None, None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Alltoall.gradient(eager, ctx, *grads)


def _alltoall_back(grad: Tensor, received: Tensor, rows: int, process_set: int) -> Tensor:
    back, _ = eager.alltoall(grad, received.tolist(), None, process_set)
    return _waiting.lengthened(back, rows)


class Reducescatter(Function):
    """All rows of the gradient, gathered."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _waiting.reducescatter(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.factor, ctx.process_set = factor_of(inputs[2:5], inputs[6]), inputs[6]

    @staticmethod
    def gradient(calls: Any, ctx: Any, grad: Tensor) -> Any:
        return calls.allgather(grad.contiguous(), None, ctx.process_set) * ctx.factor, *[None] * 6

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Reducescatter.gradient(eager, ctx, *grads)


class GroupedReducescatter(Function):
    """As of one tensor. The tensors come last."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        *options, name = arguments[:6]
        return tuple(_waiting.grouped_reducescatter(arguments[6:], name, *options))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.factor, ctx.process_set = factor_of(inputs[:3], inputs[4]), inputs[4]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        whole = [grad.contiguous() for grad in grads]
        gathered = eager.grouped_allgather(None, ctx.process_set, *whole)
        return *[None] * 6, *[tensor * ctx.factor for tensor in gathered]


def factor_of(reduction: tuple[int, float, float], process_set: int) -> float:
    """By what the gathered gradient of a reducescatter is multiplied (the original's convention)."""
    op, prescale, postscale = reduction
    return prescale * postscale * (size_of(process_set) if op == Sum else 1)


eager = SimpleNamespace(
    allreduce=Allreduce.apply,
    grouped_allreduce=GroupedAllreduce.apply,
    allgather=Allgather.apply,
    grouped_allgather=GroupedAllgather.apply,
    own_rows=OwnRows.apply,
    alltoall=Alltoall.apply,
    alltoall_back=_alltoall_back,
)
"""The operations that gradients are made of."""
