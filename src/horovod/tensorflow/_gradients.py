"""How the gradients of a step are reduced: which go together, under which names, by which operation.

Every operation is in flight at once. In a graph a large gradient is reduced as soon as it is there, while
the backward pass goes on; small ones share an operation (:func:`bundles`). When executing eagerly all of them
are there already, and an operation would only wait for the one before: they all go together. So they do where
XLA compiles, as it runs one operation at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from horovod._core.gradient_options import check_predivide, check_registered
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import Adasum, Average, Sum
from horovod.common.util import split_list
from horovod.tensorflow._xla import compiling
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import allreduce, grouped_allreduce
from horovod.tensorflow.util import places_of, unconverted, unique_name

Gradient = Any
"""``tf.Tensor``, ``tf.IndexedSlices`` or ``None``."""
Reduce = Callable[..., list[Gradient]]

SMALL = 16 << 10
"""Bytes of a gradient that waits for others, ..."""
BUNDLE_BYTES = 1 << 20
BUNDLE_TENSORS = 1024
"""... up to so many bytes and tensors."""


@dataclass(frozen=True)
class Rules:
    """How gradients are reduced."""

    op: int = Average
    compression: Any = Compression.none
    predivide: float = 1.0
    sparse_as_dense: bool = False
    groups: int | list[list[Any]] | None = None
    process_set: ProcessSet = global_process_set
    device_dense: str = ""
    device_sparse: str = ""
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        check_predivide(self.op, self.predivide)
        check_registered(self.process_set)
        if self.op not in (Average, Sum, Adasum):
            raise ValueError("Gradients are reduced by op=hvd.Average, hvd.Sum or hvd.Adasum.")

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the operations."""
        return {
            "op": self.op,
            "compression": self.compression,
            "prescale_factor": 1.0 / self.predivide,
            "postscale_factor": self.predivide,
            "process_set": self.process_set,
            "device_dense": self.device_dense,
            "device_sparse": self.device_sparse,
        }

    @property
    def reduces(self) -> bool:
        """Whether there is anybody to reduce with."""
        return bool(self.process_set.included()) and self.process_set.size() != 1


def bundles(sizes: Sequence[int | None]) -> list[list[int]]:
    """Which gradients go together, given the bytes of all; ``None`` for one whose size is not known yet."""
    found: list[list[int]] = [[]]
    together = 0
    for number, size in enumerate(sizes):
        if size is None or size > SMALL:
            continue
        if together + size > BUNDLE_BYTES or len(found[-1]) == BUNDLE_TENSORS:
            found.append([])
            together = 0
        found[-1].append(number)
        together += size
    return [bundle for bundle in found if len(bundle) > 1]


def _make_allreduce_grads_fn(name: str, rules: Rules) -> Reduce:
    """The function ``(gradients, variables=None, use_generic_names=False) -> reduced gradients``.

    ``None`` stays ``None``. Without variables there are no groups of variables.
    """

    @unconverted
    def reduce(
        grads: Sequence[Gradient], variables: Sequence[Any] | None = None, use_generic_names: bool = False
    ) -> list[Gradient]:
        if not rules.reduces:
            return list(grads)
        prepared = [_dense(grad) if rules.sparse_as_dense else grad for grad in grads]
        label = "grad" if use_generic_names else unique_name(name)
        return _Step(rules, prepared, label, use_generic_names).reduced(variables)

    return reduce


class _Step:
    """The reduction of one list of gradients."""

    def __init__(self, rules: Rules, grads: list[Gradient], label: str, generic: bool) -> None:
        self._rules, self._grads, self._label = rules, grads, label
        self._options = {**rules.options, "ignore_name_scope": generic}
        self._dense = [number for number, grad in enumerate(grads) if isinstance(grad, tf.Tensor)]

    def reduced(self, variables: Sequence[Any] | None) -> list[Gradient]:
        """The gradients, reduced."""
        result = list(self._grads)
        together = [group for members in self._groups(variables) for group in self._by_type(members)]
        grouped = {number for group in together for number in group}
        for number, grad in enumerate(self._grads):
            if grad is not None and number not in grouped:
                result[number] = allreduce(grad, name=f"{self._label}_{number}", **self._options)
        for group in together:
            tensors = [self._grads[number] for number in group]
            name = f"{self._label}_{group[0]}_group"
            for number, tensor in zip(
                group, grouped_allreduce(tensors, name=name, **self._options), strict=True
            ):
                result[number] = tensor
        return result

    def _groups(self, variables: Sequence[Any] | None) -> list[list[int]]:
        groups, dense = self._rules.groups, self._dense
        if isinstance(groups, int):
            return [list(part) for part in split_list(dense, min(groups, max(len(dense), 1)))]
        if groups is not None and variables is not None:
            places, known = places_of(variables), set(dense)
            found = [[places[key] for key in places_of(group) if key in places] for group in groups]
            return [[number for number in group if number in known] for group in found]
        if groups is not None:
            return []
        if tf.executing_eagerly() or compiling():
            return [dense]
        return [
            [same[place] for place in bundle]
            for same in self._by_type(dense)
            for bundle in bundles([_bytes_of(self._grads[number]) for number in same])
        ]

    def _by_type(self, members: Sequence[int]) -> list[list[int]]:
        """An operation has tensors of one type."""
        kinds: dict[tf.DType, list[int]] = {}
        for number in members:
            kinds.setdefault(self._grads[number].dtype, []).append(number)
        return [kind for kind in kinds.values() if kind]


def scaled_local(rules: Rules, grad: Gradient) -> Gradient:
    """The gradient of a variable that is not reduced: its share of an average, if so wanted."""
    size = rules.process_set.size()
    if grad is None or not rules.scale_local_gradients or not size:
        return grad
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values / size, grad.indices, grad.dense_shape)
    return grad / size


def _dense(grad: Gradient) -> Gradient:
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def _bytes_of(tensor: tf.Tensor) -> int | None:
    elements = tensor.shape.num_elements()
    return None if elements is None else elements * tensor.dtype.size
