"""Reduces gradients while the backward pass still runs.

Every parameter has a :class:`Slot`. When its gradient is complete, a hook starts the reduction, in place, and
the backward pass goes on; :meth:`Reducer.synchronize` starts what is missing and waits for all. Knows
nothing of optimizers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod._core.compression import wire_code
from horovod._core.process_sets import ProcessSet
from horovod._core.reduction import Average
from horovod.torch._handles import synchronize
from horovod.torch._routes import engine_for, engine_for_group
from horovod.torch._sparse import sparse_allreduce_async
from horovod.torch.compression import Compressor

Tensor = torch.Tensor


@dataclass(frozen=True)
class Rules:
    """How gradients are reduced."""

    op: int
    compression: type[Compressor]
    prescale: float
    postscale: float
    sparse_as_dense: bool
    process_set: ProcessSet

    @classmethod
    def of(
        cls,
        op: int,
        compression: type[Compressor],
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> Rules:
        """Gradients are divided by ``predivide`` before, and multiplied by it after they are added up."""
        before, after = (1.0 / predivide, predivide) if op == Average else (1.0, 1.0)
        return cls(op, compression, before, after, sparse_as_dense, process_set)


class Slot:
    """One parameter and what becomes of its gradient in this step."""

    __slots__ = ("finish", "group", "left", "name", "param", "sparse_dim")

    def __init__(self, param: Tensor, name: str, passes: int) -> None:
        self.param = param
        self.name = name
        self.left = passes
        """Backward passes until the gradient is complete; negative once it is on its way."""
        self.finish: Callable[[], object] | None = None
        """Waits for the reduction and puts its result into ``param.grad``; ``None`` if none is under way."""
        self.group: Group | None = None
        self.sparse_dim = 0
        """Of its gradient, if that was sparse: then it is when there is none, too."""


class Group:
    """Parameters that are reduced as one operation, when the last of them is ready."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self.missing = len(self.slots)
        for slot in self.slots:
            slot.group = self


class Reducer:
    """The slots of some parameters."""

    def __init__(self, rules: Rules, passes: int) -> None:
        self.passes = passes
        self.settled = False
        """Whether everything is reduced, and no gradient has come since."""
        self.rules = rules
        self._wire = wire_code(rules.compression)
        self._slots: dict[Tensor, Slot] = {}
        self._started: list[Slot] = []

    @property
    def pending(self) -> bool:
        """Whether reductions are under way."""
        return bool(self._started)

    def __contains__(self, param: Tensor) -> bool:
        return param in self._slots

    def add(self, param: Tensor, name: str) -> None:
        """From now on the parameter's gradient is reduced."""
        slot = self._slots[param] = Slot(param, name, self.passes)
        param.register_post_accumulate_grad_hook(self._hook_of(slot))  # type: ignore[attr-defined]

    def group(self, params: Iterable[Tensor]) -> None:
        """These are reduced together."""
        slots = [self._slots[param] for param in params]
        if slots:
            Group(slots)

    def set_passes(self, passes: int) -> None:
        """So many backward passes make a gradient."""
        self.passes = passes
        self.reset()

    def reset(self) -> None:
        """All gradients start anew; what is under way is waited for and forgotten."""
        self._wait()
        self._start_anew()

    def synchronize(self) -> None:
        """Returns when all gradients are reduced. Those that never came count as zeros."""
        for slot in self._slots.values():
            if slot.left >= 0 and (slot.param.requires_grad or slot.group is not None):
                self._complete(slot)
        error = self._wait()
        self._start_anew()
        self.settled = True
        if error is not None:
            raise error

    def _hook_of(self, slot: Slot) -> Callable[[Tensor], None]:
        def hook(_param: Tensor) -> None:
            self.settled = False
            slot.left -= 1
            if slot.left == 0:
                self._complete(slot)
            elif slot.left < 0:
                raise AssertionError(
                    f"The gradient of '{slot.name}' was computed more than backward_passes_per_step="
                    f"{self.passes} times before optimizer.step() or optimizer.synchronize(). To accumulate "
                    "gradients over several passes, give their number to hvd.DistributedOptimizer("
                    "backward_passes_per_step=...)."
                )

        return hook

    def _complete(self, slot: Slot) -> None:
        slot.left = -1
        self._started.append(slot)
        group = slot.group
        if group is None:
            slot.finish = self._reduce(slot)
            return
        group.missing -= 1
        if group.missing == 0:
            self._reduce_group(group)

    def _start_anew(self) -> None:
        passes = self.passes
        for slot in self._slots.values():
            slot.left = passes
            if slot.group is not None:
                slot.group.missing = len(slot.group.slots)

    def _wait(self) -> BaseException | None:
        """Waits for all that was started; the first failure, if there was one."""
        error: BaseException | None = None
        started, self._started = self._started, []
        for slot in started:
            finish, slot.finish = slot.finish, None
            try:
                if finish is not None:
                    finish()
            except RuntimeError as failure:
                error = error or failure
        return error

    def _reduce(self, slot: Slot) -> Callable[[], object]:
        grad = self._gradient_of(slot)
        if grad.is_sparse and not self.rules.sparse_as_dense:
            return self._reduce_sparse(slot, grad)
        if self._wire is not None and not grad.is_sparse and grad.is_contiguous():
            return functools.partial(synchronize, self._start(slot.name, grad))
        tensor, context = self._travelling(grad)
        handle = self._start(slot.name, tensor)
        return lambda: self._put_back(slot, grad, synchronize(handle), context)

    def _start(self, name: str, tensor: Tensor) -> int:
        rules = self.rules
        return engine_for(tensor).allreduce_async(
            name,
            tensor,
            tensor,
            rules.op,
            rules.prescale,
            rules.postscale,
            self._wire or 0,
            rules.process_set.process_set_id,
        )

    def _reduce_sparse(self, slot: Slot, grad: Tensor) -> Callable[[], object]:
        rules = self.rules
        waiting = sparse_allreduce_async(grad, slot.name, rules.op, rules.process_set)

        def finish() -> None:
            slot.param.grad = waiting()

        slot.sparse_dim = grad.sparse_dim()
        return finish

    def _reduce_group(self, group: Group) -> None:
        rules = self.rules
        slots = [slot for slot in group.slots if slot.param.requires_grad]  # others are frozen for now
        if not slots:
            return
        grads = [self._gradient_of(slot) for slot in slots]
        for slot, grad in zip(slots, grads, strict=True):
            if grad.is_sparse and not rules.sparse_as_dense:
                raise ValueError(
                    f"The gradient of '{slot.name}' is sparse and cannot be reduced in a group: leave it out of "
                    "groups=, or use sparse_as_dense=True."
                )
        pairs = [self._travelling(grad) for grad in grads]
        tensors = [tensor for tensor, _ in pairs]
        first = slots[0]
        handle = engine_for_group(tensors).grouped_allreduce_async(
            first.name,
            tensors,
            tensors,
            rules.op,
            rules.prescale,
            rules.postscale,
            self._wire or 0,
            rules.process_set.process_set_id,
        )

        def finish() -> None:
            results = synchronize(handle)
            for slot, grad, reduced, (_, context) in zip(slots, grads, results, pairs, strict=True):
                self._put_back(slot, grad, reduced, context)

        first.finish = finish

    @staticmethod
    def _gradient_of(slot: Slot) -> Tensor:
        """The parameter's gradient; zeros if it never came."""
        grad = slot.param.grad
        if grad is None:
            param = slot.param.detach()
            grad = torch.zeros_like(param)
            if slot.sparse_dim:
                shape = param.shape[slot.sparse_dim :]
                nowhere = torch.empty(slot.sparse_dim, 0, dtype=torch.int64)
                grad = torch.sparse_coo_tensor(nowhere, param.new_empty(0, *shape), param.shape, check_invariants=False)
            slot.param.grad = grad
        return grad

    def _travelling(self, grad: Tensor) -> tuple[Tensor, Any]:
        """The contiguous tensor that is reduced in place of the gradient; itself if it can be."""
        dense = grad.to_dense() if grad.is_sparse else grad
        context = None
        if self._wire is None:
            dense, context = self.rules.compression.compress(dense)
        return dense.contiguous(), context

    def _put_back(self, slot: Slot, grad: Tensor, reduced: Tensor, context: Any) -> None:
        if reduced is grad:
            return
        if self._wire is None:
            reduced = self.rules.compression.decompress(reduced, context)
        if grad.is_sparse:
            slot.param.grad = reduced.to_sparse(grad.sparse_dim())
        elif reduced is not grad:
            grad.detach().copy_(reduced)
