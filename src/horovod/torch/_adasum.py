"""Training with Adasum: every rank makes its own step, and the steps are combined."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from horovod._core.process_sets import global_process_set
from horovod._core.reduction import Adasum, Max
from horovod.torch._differentiable import allreduce, grouped_allreduce
from horovod.torch.compression import Compressor


class AdasumOptimizer(torch.optim.Optimizer):
    """What ``DistributedOptimizer`` adds to an optimizer if ``op`` is ``Adasum``.

    The wrapped optimizer steps as it would alone; what it changed is reduced by Adasum and added to where the
    parameters were.
    """

    _compression: type[Compressor]
    grad_scale: torch.Tensor | None
    found_inf: torch.Tensor | None
    """What a ``GradScaler`` lends for a step."""
    _parameter_names: dict[torch.Tensor, str]

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Steps, and combines the steps of all ranks."""
        if self._has_overflowed():
            return None
        params = [param for group in self.param_groups for param in group["params"] if param.requires_grad]
        before = [param.detach().clone() for param in params]
        loss = super().step(closure)
        deltas = [param.detach() - start for param, start in zip(params, before, strict=True)]
        with torch.no_grad():
            combined = self._combine(deltas)
            for param, start, delta in zip(params, before, combined, strict=True):
                param.copy_(start + delta)
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # the wrapped optimizer's step calls the hooks

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # So that GradScaler leaves it to step() what to do about an overflow: all ranks must do the same.
        return True

    def _has_overflowed(self) -> bool:
        """Whether a gradient of any rank has, where a ``GradScaler`` has looked; else they are unscaled."""
        found: torch.Tensor | None = getattr(self, "found_inf", None)
        if found is None:
            return False
        if allreduce(found.detach().cpu(), op=Max, name="DistributedAdasumOptimizer.found_inf").item():
            return True
        scale: torch.Tensor | None = getattr(self, "grad_scale", None)
        if vars(self).get("_step_supports_amp_scaling"):
            return False  # the wrapped optimizer, a fused one, knows what to do
        self.found_inf = self.grad_scale = None
        if scale is not None:
            for param in (param for group in self.param_groups for param in group["params"]):
                if param.grad is not None:
                    param.grad.div_(scale.to(param.grad.device))
        return False

    def _combine(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        return grouped_allreduce(
            [delta.contiguous() for delta in deltas],
            op=Adasum,
            name="DistributedAdasumOptimizer",
            compression=self._compression,
            process_set=global_process_set,
        )

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced, steps are."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Not possible here."""
        raise AssertionError("skip_synchronize() does not go with op=hvd.Adasum: there is nothing to skip.")
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients may be accumulated over any number of passes."""
