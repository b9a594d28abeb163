"""Keras 3 on torch: gradients are torch tensors, and everything runs eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod._core.frontends import frontend
from horovod._core.gradient_options import check_predivide, check_registered
from horovod._core.reduction import Average
from horovod._keras.backends import Aggregation, Reduce
from horovod.common.util import split_list

__all__ = ["Torch"]


class Torch:
    """Reduces by ``horovod.torch``: all gradients in flight at once, small ones together."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd

    def compression(self) -> Any:
        return self._hvd.Compression

    def reducer(self, name: str, options: dict[str, Any]) -> Reduce:
        check_predivide(options["op"], options["predivide"])
        check_registered(options["process_set"])
        return _Reducer(self._hvd, name, options)

    def scaled_local(self, options: dict[str, Any], grad: Any) -> Any:
        size = options["process_set"].size()
        return grad if grad is None or not options["scale_local_gradients"] or not size else grad / size

    def aggregation(self, passes: int, reduce: Reduce, options: dict[str, Any], average: bool) -> Aggregation:
        return _Aggregation(passes, reduce, options, average, self)

    def key_of(self, variable: Any) -> int:
        return id(variable)

    def tensor(self, value: Any) -> Any:
        import torch

        return value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(value)

    def operations(self) -> Any:
        return self._hvd


class _Reducer:
    """Reduces lists of gradients."""

    def __init__(self, hvd: Any, name: str, options: dict[str, Any]) -> None:
        self._hvd, self._name, self._options = hvd, name, options
        self._bundles = frontend("torch._reducer").bundles
        factor = options["predivide"]
        self._arguments = {
            "op": options["op"],
            "process_set": options["process_set"],
            "prescale_factor": 1.0 / factor if options["op"] == Average else 1.0,
            "postscale_factor": factor if options["op"] == Average else 1.0,
        }

    def __call__(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        process_set = self._options["process_set"]
        if not process_set.included() or process_set.size() == 1:
            return list(grads)
        result = [
            None if grad is None else _ours(grad, var) for grad, var in zip(grads, variables, strict=True)
        ]
        travelling, contexts = self._compressed(result)
        groups = self._groups(travelling, variables)
        grouped = {number for group in groups for number in group}
        hvd, name = self._hvd, self._name
        handles = [
            hvd.allreduce_async_(tensor, name=f"{name}_{number}", **self._arguments)
            for number, tensor in enumerate(travelling)
            if tensor is not None and number not in grouped
        ] + [
            hvd.grouped_allreduce_async_(
                [travelling[number] for number in group], name=f"{name}_{group[0]}_group", **self._arguments
            )
            for group in groups
        ]
        for handle in handles:
            hvd.synchronize(handle)
        decompress = self._options["compression"].decompress
        return [
            None if tensor is None else decompress(tensor, context)
            for tensor, context in zip(travelling, contexts, strict=True)
        ]

    def _compressed(self, grads: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        compress = self._options["compression"].compress
        pairs = [(None, None) if grad is None else compress(grad) for grad in grads]
        return [tensor for tensor, _ in pairs], [context for _, context in pairs]

    def _groups(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[list[int]]:
        groups = self._options["groups"]
        present = [number for number, grad in enumerate(grads) if grad is not None]
        if isinstance(groups, int):
            return [list(part) for part in split_list(present, min(groups, max(len(present), 1))) if part]
        if groups is not None:
            places = {id(variable): number for number, variable in enumerate(variables)}
            found = [[places[id(member)] for member in group if id(member) in places] for group in groups]
            there = [[number for number in group if number in present] for group in found]
            return [group for group in there if group]
        tensors = [grads[number] for number in present]
        return [[present[place] for place in bundle] for bundle in self._bundles(tensors)]


def _ours(grad: Any, variable: Any) -> Any:
    """A tensor that may be changed: the variable's own gradient, or a copy of what somebody else has."""
    if grad.is_sparse:
        return grad.to_dense()
    grad = grad.detach()
    value = getattr(variable, "value", None)
    own = getattr(value, "grad", None)
    if own is not None and own.data_ptr() == grad.data_ptr() and grad.is_contiguous():
        return grad
    return grad.clone().contiguous()


class _Aggregation:
    """Adds up the gradients of several steps."""

    def __init__(
        self, passes: int, reduce: Reduce, options: dict[str, Any], average: bool, backend: Torch
    ) -> None:
        self.counter = 0
        self._passes, self._reduce, self._options = passes, reduce, options
        self._average, self._backend = average, backend
        self._sums: dict[int, Any] = {}
        self._local: set[int] = set()

    def register_local_var(self, var: Any) -> None:
        self._local.add(id(var))

    def compute_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        for grad, variable in zip(grads, variables, strict=True):
            if grad is not None:
                known = self._sums.get(id(variable))
                self._sums[id(variable)] = grad.detach().clone() if known is None else known.add_(grad)
        self.counter += 1
        if self.counter < self._passes:
            return list(grads)
        sums, self._sums, self.counter = self._sums, {}, 0
        totals = [sums.get(id(variable)) for variable in variables]
        if self._average:
            totals = [None if total is None else total / self._passes for total in totals]
        local = [id(variable) in self._local for variable in variables]
        shared = [None if own else total for own, total in zip(local, totals, strict=True)]
        return [
            self._backend.scaled_local(self._options, total) if own else common
            for own, total, common in zip(local, totals, self._reduce(shared, variables), strict=True)
        ]

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any) -> Any:
        if self.counter == 0:
            return apply_grads_closure()
        return optimizer.iterations.assign_add(1)
