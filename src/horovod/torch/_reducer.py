"""Reduces gradients while the backward pass still runs.

Every parameter has a :class:`Slot`. When its gradient is complete, a hook starts the reduction, in place, and
the backward pass goes on; :meth:`Reducer.synchronize` starts what is missing and waits for all. For small
gradients (biases, norms) a hook of their own would cost more than it gains: they wait for the end, in bundles
that are one operation each. Knows nothing of optimizers.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod._core import runtime
from horovod._core.compression import wire_code
from horovod._core.process_sets import ProcessSet
from horovod._core.reduction import Average, Max
from horovod.torch._handles import synchronize
from horovod.torch._routes import engine_for, engine_for_group
from horovod.torch._sparse import sparse_allreduce_async
from horovod.torch.compression import Compressor

Tensor = torch.Tensor

SMALL = 16 << 10
"""Bytes of a gradient that waits for others, ..."""
BUNDLE_BYTES = 1 << 20
BUNDLE_TENSORS = 1024
"""... up to so many bytes and tensors."""


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

    __slots__ = ("group", "left", "name", "param", "sparse_dim")

    def __init__(self, param: Tensor, name: str, passes: int) -> None:
        self.param = param
        self.name = name
        self.left = passes
        """Backward passes until the gradient is complete."""
        self.group: Group | None = None
        self.sparse_dim = 0
        """Of its gradient, if that was sparse: then it is when there is none, too."""


class Group:
    """Parameters that are reduced as one operation, when the last of them is ready."""

    __slots__ = ("missing", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self.missing = len(self.slots)
        for slot in self.slots:
            slot.group = self


def bundles(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Which of these gradients, or of their parameters, go together: small ones of one device."""
    by_device: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(number)
    return [
        [numbers[place] for place in bundle]
        for numbers in by_device.values()
        for bundle in bundles_of([tensors[number].nbytes for number in numbers])
    ]


def bundles_of(sizes: Sequence[int]) -> list[list[int]]:
    """The same, given the bytes of all."""
    found: list[list[int]] = [[]]
    together = 0
    for number, size in enumerate(sizes):
        if size > SMALL:
            continue
        if together + size > BUNDLE_BYTES or len(found[-1]) == BUNDLE_TENSORS:
            found.append([])
            together = 0
        found[-1].append(number)
        together += size
    return [bundle for bundle in found if len(bundle) > 1]


class Reducer:
    """The slots of some parameters."""

    def __init__(self, rules: Rules, passes: int) -> None:
        self.passes = passes
        self.pending = False
        """Whether a gradient is complete, and maybe on its way, that nobody has waited for yet."""
        self.settled = False
        """Whether everything is reduced, and no gradient has come since."""
        self.rules = rules
        self._wire = wire_code(rules.compression)
        self._slots: dict[Tensor, Slot] = {}
        self._learnt: tuple[int, int] | None = None
        """In which world, and of how many parameters, it is known whose gradients are sparse."""
        self._hooked: list[Slot] = []
        """Those that are reduced when they are complete."""
        self._bundles: list[list[Slot]] = []
        """The others."""
        self._started: list[Callable[[], object]] = []
        """What waits for the reductions under way, and puts the results into the gradients."""

    def __contains__(self, param: Tensor) -> bool:
        return param in self._slots

    def add(self, params: dict[Tensor, str], bundle: bool = False) -> None:
        """From now on the gradients of these parameters are reduced, under these names."""
        slots = [Slot(param, name, self.passes) for param, name in params.items()]
        self._slots.update({slot.param: slot for slot in slots})
        together = bundles([slot.param for slot in slots]) if bundle else []
        for numbers in together:
            self._bundles.append([slots[number] for number in numbers])
            # One of them tells that gradients have come: the first, which is probably the last.
            self._hook(slots[numbers[0]], starts=False)
        bundled = {number for numbers in together for number in numbers}
        for slot in (slot for number, slot in enumerate(slots) if number not in bundled):
            self._hooked.append(slot)
            self._hook(slot, starts=True)

    def group(self, params: Iterable[Tensor]) -> None:
        """These, which are not in bundles, are reduced together as soon as all are complete."""
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
        if not self.rules.sparse_as_dense and self._slots:
            self._learn_what_is_sparse()
        for slot in self._hooked:
            if slot.left > 0 and (slot.param.requires_grad or slot.group is not None):
                self._complete(slot)
        for bundle in self._bundles:
            self._reduce_together(bundle)
        error = self._wait()
        self._start_anew()
        self.settled = True
        if error is not None:
            raise error

    def _learn_what_is_sparse(self) -> None:
        """Once in every world, and for new parameters: of a gradient that has not come here, others know."""
        running = runtime.current()
        now = (running.generation, len(self._slots))
        if self._learnt == now:
            return
        slots = list(self._slots.values())
        dims = torch.tensor([_sparse_dim(slot.param.grad) for slot in slots], dtype=torch.uint8)
        process_set = self.rules.process_set.process_set_id
        running.engine.allreduce(f"{slots[0].name}.sparse", dims, dims, Max, 1.0, 1.0, 0, process_set)
        for slot, dim in zip(slots, dims.tolist(), strict=True):
            slot.sparse_dim = dim
        self._learnt = now

    def _hook(self, slot: Slot, starts: bool) -> None:
        """Counts the slot's gradients, and starts their reduction or not."""
        owner = weakref.ref(self)  # parameters may outlive their optimizer, and get another one

        def hook(_param: Tensor) -> None:
            left = slot.left = slot.left - 1
            reducer = owner()
            if left > 0 or reducer is None:
                return
            if left < 0:
                raise AssertionError(
                    f"The gradient of '{slot.name}' was computed more than backward_passes_per_step="
                    f"{reducer.passes} times before optimizer.step() or optimizer.synchronize(). To "
                    "accumulate gradients over several passes, give their number to "
                    "hvd.DistributedOptimizer(backward_passes_per_step=...)."
                )
            reducer.pending, reducer.settled = True, False
            if starts:
                reducer._complete(slot)

        handle = slot.param.register_post_accumulate_grad_hook(hook)
        weakref.finalize(self, handle.remove)

    def _complete(self, slot: Slot) -> None:
        slot.left = 0
        group = slot.group
        if group is None:
            self._started.append(self._reduce(slot))
            return
        group.missing -= 1
        if group.missing == 0:
            self._reduce_together(group.slots)

    def _start_anew(self) -> None:
        self.pending = False
        passes = self.passes
        for slot in self._slots.values():
            slot.left = passes
            if slot.group is not None:
                slot.group.missing = len(slot.group.slots)

    def _wait(self) -> BaseException | None:
        """Waits for all that was started; the first failure, if there was one."""
        error: BaseException | None = None
        started, self._started = self._started, []
        for finish in started:
            try:
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

    def _reduce_together(self, together: Sequence[Slot]) -> None:
        slots = [slot for slot in together if slot.param.requires_grad]  # others are frozen for now
        grads = [slot.param.grad for slot in slots]
        if any(grad is None for grad in grads):
            grads = [self._gradient_of(slot) for slot in slots]
        if self._wire is not None and slots:
            try:
                handle = self._start_group(slots[0].name, grads)  # type: ignore[arg-type]
            except ValueError:  # something sparse or strided
                pass
            else:
                self._started.append(functools.partial(synchronize, handle))
                return
        self._reduce_mixed(slots)

    def _reduce_mixed(self, slots: Sequence[Slot]) -> None:
        """Some of the gradients cannot be reduced where they are."""
        dense: list[tuple[Slot, Tensor]] = []
        for slot in slots:
            grad = self._gradient_of(slot)
            if grad.is_sparse and not self.rules.sparse_as_dense:
                self._started.append(self._reduce_sparse(slot, grad))
            else:
                dense.append((slot, grad))
        if not dense:
            return
        pairs = [self._travelling(grad) for _, grad in dense]
        handle = self._start_group(dense[0][0].name, [tensor for tensor, _ in pairs])

        def finish() -> None:
            results = synchronize(handle)
            for (slot, grad), reduced, (_, context) in zip(dense, results, pairs, strict=True):
                self._put_back(slot, grad, reduced, context)

        self._started.append(finish)

    def _start_group(self, name: str, tensors: list[Tensor]) -> int:
        rules = self.rules
        return engine_for_group(tensors).grouped_allreduce_async(
            name,
            tensors,
            tensors,
            rules.op,
            rules.prescale,
            rules.postscale,
            self._wire or 0,
            rules.process_set.process_set_id,
        )

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
                grad = torch.sparse_coo_tensor(
                    nowhere, param.new_empty(0, *shape), param.shape, check_invariants=False
                )
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


def _sparse_dim(grad: Tensor | None) -> int:
    """0 of a dense gradient, and of none."""
    return grad.sparse_dim() if grad is not None and grad.is_sparse else 0
