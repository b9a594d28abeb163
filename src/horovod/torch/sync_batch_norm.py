"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from horovod._core.process_sets import global_process_set
from horovod._core.reduction import Sum
from horovod.torch._asynchronous import allreduce_
from horovod.torch._differentiable import allgather

__all__ = ["SyncBatchNorm"]

Tensor = torch.Tensor


class SyncBatchNorm(_BatchNorm):
    """Like ``torch.nn.BatchNorm1d`` to ``3d``, with mean and variance of the batches of all ranks together.

    The ranks may have batches of different sizes. The gradients of weight and bias are those of this rank's
    batch: ``DistributedOptimizer`` reduces them, as all others. When evaluating, and alone, it is a plain
    batch normalisation.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm needs input of 2 dimensions or more, not {input.dim()}.")
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm({self.num_features}) got input of {input.shape[1]} channels: its shape is "
                f"{list(input.shape)}."
            )

    def forward(self, input: Tensor) -> Tensor:
        """The normalised input."""
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or global_process_set.size() in (None, 1) or global_process_set.ranks is None:
            return super().forward(input)
        mean, variance, count = _statistics(input)
        if self.training and self.track_running_stats:
            self._track(mean, variance, count)
        apply: Any = _Normalise.apply  # which has no types in torch
        normalised: Tensor = apply(input, self.weight, self.bias, mean, variance, count, self.eps)
        return normalised

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        running_mean, running_var, batches = self.running_mean, self.running_var, self.num_batches_tracked
        assert running_mean is not None
        assert running_var is not None
        assert batches is not None
        batches.add_(1)
        share = 1.0 / float(batches) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        running_mean.lerp_(mean.to(running_mean.dtype), share)
        running_var.lerp_(unbiased.to(running_var.dtype), share)


def _over_batch(tensor: Tensor) -> list[int]:
    """The dimensions that statistics are taken over: all but that of the channels."""
    return [0, *range(2, tensor.dim())]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.dim() - 2))


@torch.no_grad()
def _statistics(input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, (biased) variance and number of elements per channel, over the batches of all ranks.

    In double precision: every rank sends its own mean and sum of squared differences from it.
    """
    channels = input.shape[1]
    elements = input.numel() // max(channels, 1)
    own = torch.zeros(1, 2 * channels + 1, dtype=torch.float64, device=input.device)
    if elements:
        wide = input.detach().to(torch.float64)
        variance, mean = torch.var_mean(wide, _over_batch(input), correction=0)
        own[0, 0] = elements
        own[0, 1:] = torch.cat([mean, variance * elements])
    all_ranks = allgather(own, name="sync_batch_norm.statistics")
    counts, means, squares = all_ranks[:, :1], all_ranks[:, 1 : channels + 1], all_ranks[:, channels + 1 :]
    count = counts.sum()
    if count <= 1:
        raise ValueError(
            f"SyncBatchNorm expects more than 1 value per channel over all ranks when training; this rank "
            f"got input of shape {list(input.shape)}."
        )
    mean = (counts * means).sum(0) / count
    variance = (squares + counts * (means - mean) ** 2).sum(0) / count
    return mean, variance, count


class _Normalise(torch.autograd.Function):
    """``(input - mean) / sqrt(variance + eps) * weight + bias``: mean and variance depend on all inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        inverse = (variance + eps).rsqrt()
        ctx.save_for_backward(input, weight, mean, inverse, count)
        ctx.has_bias = bias is not None
        scale = inverse if weight is None else inverse * weight
        offset = -mean * scale if bias is None else bias - mean * scale
        kind = _arithmetic_type(input)
        wide = input.to(kind)
        output = wide * _per_channel(scale.to(kind), input) + _per_channel(offset.to(kind), input)
        return output.to(input.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        input, weight, mean, inverse, count = ctx.saved_tensors
        kind = _arithmetic_type(input)
        grad = grads[0].to(kind)
        over = _over_batch(input)
        centred = input.to(kind) - _per_channel(mean.to(kind), input)
        sum_grad = grad.sum(over, dtype=torch.float64)
        sum_product = (grad * centred).sum(over, dtype=torch.float64)
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            sums = torch.stack([sum_grad, sum_product])
            allreduce_(sums, name="sync_batch_norm.gradients", op=Sum)
            scale = inverse if weight is None else inverse * weight
            slope = sums[1] / count * inverse**2
            level = sums[0] / count
            grad_input = (
                grad - _per_channel(level.to(kind), input) - centred * _per_channel(slope.to(kind), input)
            )
            grad_input = (grad_input * _per_channel(scale.to(kind), input)).to(input.dtype)
        if weight is not None and ctx.needs_input_grad[1]:
            grad_weight = (sum_product * inverse).to(weight.dtype)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = sum_grad.to(grads[0].dtype if weight is None else weight.dtype)
        return grad_input, grad_weight, grad_bias, None, None, None, None


def _arithmetic_type(tensor: Tensor) -> torch.dtype:
    """Halves are computed with as float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
