"""``DistributedOptimizer``: an optimizer whose gradients are reduced over all ranks."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from horovod._core import runtime
from horovod._core.objects import broadcast_object
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import Adasum, Average, known, reduction_of
from horovod.common.util import split_list
from horovod.torch._adasum import AdasumOptimizer
from horovod.torch._reducer import Reducer, Rules
from horovod.torch.compression import Compression, Compressor

__all__ = ["DistributedOptimizer"]

Named = Iterable[tuple[str, torch.Tensor]]
Groups = int | Sequence[Sequence[torch.Tensor]]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Named | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """An optimizer like ``optimizer``, sharing its parameters and state, that reduces gradients first.

    Reductions start in the backward pass, as soon as a gradient is complete; ``step()`` waits for them. To
    work on reduced gradients before the step (to clip them, say), call ``synchronize()`` and step inside
    ``with optimizer.skip_synchronize()``.

    Args:
        optimizer: any ``torch.optim.Optimizer`` but LBFGS.
        named_parameters: ``model.named_parameters()``; the names appear in messages and timelines.
        compression: as what type gradients travel.
        backward_passes_per_step: how many passes add up to the gradient of a step.
        op: ``Average``, ``Sum`` or ``Adasum``.
        gradient_predivide_factor: averages are divided by it before the sum and by ``size / factor`` after.
        num_groups: the old name of ``groups``.
        groups: a number, or lists of parameters: the gradients of a group are reduced as one operation.
        sparse_as_dense: makes sparse gradients dense before they are reduced.
        process_set: the ranks to reduce over. Ranks outside step on their own.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "torch.optim.LBFGS evaluates its closure several times in one step, each rank as often as its "
            "own gradients ask for; it cannot be distributed."
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"DistributedOptimizer wraps a torch.optim.Optimizer, not {type(optimizer).__name__}."
        )
    runtime.engine()  # an error, here and not in the first backward pass, if there is none
    _check_predivide(gradient_predivide_factor, known(op))
    if process_set.process_set_id is None:
        raise TypeError(f"{process_set} is not registered: give it to hvd.init() or hvd.add_process_set().")
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2
        )
        groups = num_groups if groups is None else groups
    _check_passes(backward_passes_per_step)
    names = _names_of(optimizer, named_parameters)
    members = _check_groups(groups)
    if op == Adasum:
        reduction_of(op, None, process_set.process_set_id)
        if runtime.identity().size > 1:
            return _adasum(optimizer, names, compression)
    rules = Rules.of(op, compression, gradient_predivide_factor, sparse_as_dense, process_set)
    wrapped: _ReducingOptimizer = _wrapped(optimizer, _ReducingOptimizer)
    wrapped._begin(Reducer(rules, backward_passes_per_step), names, members)
    return wrapped


class _ReducingOptimizer(torch.optim.Optimizer):
    """What :func:`DistributedOptimizer` adds to the class of an optimizer."""

    _reducer: Reducer
    _parameter_names: dict[torch.Tensor, str]
    _frozen: list[torch.Tensor]
    """Parameters without a gradient; they may get one later."""
    _reduces: bool
    """Whether there is anybody to reduce with."""
    _should_synchronize: bool
    _synchronized: bool
    """Whether the user has called ``synchronize()`` since the last step."""

    def _begin(
        self, reducer: Reducer, names: dict[torch.Tensor, str], groups: int | list[list[torch.Tensor]]
    ) -> None:
        self._reducer = reducer
        self._parameter_names = names
        process_set = reducer.rules.process_set
        self._reduces = bool(process_set.included()) and process_set.size() != 1
        self._should_synchronize = True
        self._synchronized = False
        self._frozen = []
        if not self._reduces:
            return
        self._adopt(self.param_groups, bundle=groups == 0)
        for group in self._agreed(groups, process_set):
            reducer.group(group)

    def _adopt(self, groups: Sequence[dict[str, Any]], bundle: bool = False) -> None:
        """Reduces the gradients of the groups' parameters; of frozen ones once they have thawed."""
        first = len(self.param_groups) - len(groups)
        adopted = {}
        for number, group in enumerate(groups, first):
            for index, param in enumerate(group["params"]):
                name = self._parameter_names.setdefault(param, _default_name(number, index))
                if param.requires_grad:
                    adopted[param] = name
                else:
                    self._frozen.append(param)
        self._reducer.add(adopted, bundle)

    def _adopt_thawed(self) -> None:
        if thawed := {param: self._parameter_names[param] for param in self._frozen if param.requires_grad}:
            self._reducer.add(thawed)
            self._frozen = [param for param in self._frozen if not param.requires_grad]

    def _agreed(
        self, groups: int | list[list[torch.Tensor]], process_set: ProcessSet
    ) -> list[list[torch.Tensor]]:
        if not isinstance(groups, int):
            return [[param for param in group if param in self._reducer] for group in groups]
        if groups == 0:
            return []
        by_name = {name: param for param, name in self._parameter_names.items() if param in self._reducer}
        # In the order of one rank: it depends on how the model was built.
        order = broadcast_object(list(by_name), (process_set.ranks or [0])[0], process_set=process_set)
        return [[by_name[name] for name in part] for part in split_list(order, min(groups, len(order)))]

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. Those of parameters that took no part are zeros."""
        self._synchronized = True
        if self._reduces:
            self._adopt_thawed()
            self._reducer.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step()`` takes the gradients as they are: after :meth:`synchronize`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Waits for the reduced gradients, and steps. A closure's gradients are reduced when it returns."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). The gradients are reduced already; use "
                    "`with optimizer.skip_synchronize(): optimizer.step()`.",
                    stacklevel=2,
                )
            closure = self._settle(closure)
        # Not all optimizers take a closure.
        result = super().step() if closure is None else super().step(closure)
        self._synchronized = self._reducer.settled = False
        return result

    step.hooked = True  # type: ignore[attr-defined]  # the wrapped optimizer's step calls the hooks

    def _settle(self, closure: Callable[[], float] | None) -> Callable[[], float] | None:
        """Reduces what is to be reduced now; for later, a closure that does so when it has run."""
        if closure is None:
            if not self._reducer.settled:
                self.synchronize()
            return None

        def reducing() -> float:
            loss = closure()
            if not self._reducer.settled:
                self.synchronize()
            return loss

        return reducing

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Not while gradients are being reduced."""
        if self._reducer.pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). The gradients are still being reduced: call one of these first."
            )
        self._reducer.settled = False
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on so many passes add up to the gradient of a step."""
        _check_passes(passes)
        self._reducer.set_passes(passes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also forgets the gradients of the step that was under way."""
        self._reducer.reset()
        self._synchronized = False
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The gradients of new parameters are reduced, too."""
        super().add_param_group(param_group)
        if self._reduces:
            self._adopt(self.param_groups[-1:])

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler.step() asks for this before it looks at the gradients: they must be there.
        if self._should_synchronize and not self._synchronized and not self._reducer.settled:
            self.synchronize()
            self._synchronized = False
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))


def _adasum(
    optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], compression: type[Compressor]
) -> torch.optim.Optimizer:
    wrapped: AdasumOptimizer = _wrapped(optimizer, AdasumOptimizer)
    wrapped._compression = compression
    wrapped._parameter_names = names
    return wrapped


def _wrapped(optimizer: torch.optim.Optimizer, addition: type[torch.optim.Optimizer]) -> Any:
    """An object like ``optimizer``, of its class with an addition, that shares everything it has.

    Its constructor is not called again: what that would need, or do, is the class's own affair.
    """
    base = type(optimizer)
    if "_parameter_names" in vars(optimizer):
        raise ValueError("The optimizer is distributed already: its gradients would be reduced twice.")
    names = {"__module__": __name__, "__doc__": base.__doc__}
    distributed: Any = type(base.__name__, (addition, base), names)
    wrapped = object.__new__(distributed)
    # One dictionary for both objects: a scheduler may know the other, and load_state_dict() puts new values
    # into it.
    wrapped.__dict__ = vars(optimizer)
    if "step" in vars(optimizer):
        wrapped.step = _noticed_step(wrapped)
    return wrapped


def _noticed_step(wrapped: Any) -> Callable[..., Any]:
    """A step that takes the place of the one that a scheduler has put into the object.

    Schedulers want to know whether the optimizer has stepped; the one they put there calls the old class's.
    """
    distributed = type(wrapped)

    @functools.wraps(distributed.step)
    def step(*args: Any, **kwargs: Any) -> Any:
        wrapped._opt_called = True
        return distributed.step(wrapped, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _default_name(group: int, index: int) -> str:
    return f"allreduce.noname.{group}.{index}"


def _check_predivide(factor: float, op: int) -> None:
    if op != Average and factor != 1.0:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only.")
    if not math.isfinite(factor) or factor == 0.0:
        raise ValueError(f"gradient_predivide_factor must be a finite number other than 0, not {factor}.")


def _check_passes(passes: int) -> None:
    if not isinstance(passes, int) or passes <= 0:
        raise ValueError(f"backward_passes_per_step must be 1 or more, not {passes!r}.")


def _names_of(optimizer: torch.optim.Optimizer, named: Named | None) -> dict[torch.Tensor, str]:
    """The names of the optimizer's parameters."""
    if named is None:
        return {
            param: _default_name(number, index)
            for number, group in enumerate(optimizer.param_groups)
            for index, param in enumerate(group["params"])
        }
    pairs = list(named)
    if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually "
            "model.named_parameters()."
        )
    counts = Counter(name for name, _ in pairs)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}"
        )
    by_param = {param: name for name, param in pairs}
    for number, group in enumerate(optimizer.param_groups):
        for index, param in enumerate(group["params"]):
            if param not in by_param:
                raise ValueError(
                    "named_parameters was specified, but one or more model parameters were not named: number "
                    f"{index} of group {number}, of shape {list(param.shape)}. Name all of them, or none."
                )
    return by_param


def _check_groups(groups: Groups | None) -> int | list[list[torch.Tensor]]:
    if groups is None:
        return 0
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups <= 0:
            raise ValueError(f"groups must be a positive number or lists of parameters, not {groups}.")
        return groups
    if not isinstance(groups, list) or not all(isinstance(group, list | tuple) for group in groups):
        raise ValueError("groups must be a positive number or a list of lists of parameters.")
    seen: set[torch.Tensor] = set()
    for param in (param for group in groups for param in group):
        if not isinstance(param, torch.Tensor):
            raise ValueError(f"groups must contain parameters, not {type(param).__name__}.")
        if param in seen:
            raise ValueError(f"groups has a parameter of shape {list(param.shape)} twice.")
        seen.add(param)
    return [list(group) for group in groups]
