"""``DistributedGradientTape``: a ``tf.GradientTape`` whose gradients are reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod._core import runtime
from horovod._core.gradient_options import check_groups
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import Average
from horovod._keras.layers import local_weights
from horovod.tensorflow._gradients import Gradient, Reduce, Rules, _make_allreduce_grads_fn, scaled_local
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.util import VariableSet, unconverted

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


@unconverted
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A tape that shares everything with ``gradtape``, and whose ``gradient()`` is reduced over all ranks.

    Args:
        gradtape: the tape; it may have recorded already, or be used in a ``with`` statement afterwards.
        device_dense: the device that reduces tensors, if not theirs.
        device_sparse: the device that gathers ``tf.IndexedSlices``, if not theirs.
        compression: as what type gradients travel.
        sparse_as_dense: makes ``tf.IndexedSlices`` dense before they are reduced.
        op: ``Average``, ``Sum`` or ``Adasum``.
        gradient_predivide_factor: averages are divided by it before the sum and by ``size / factor`` after.
        num_groups: the old name of ``groups``.
        groups: a number, or lists of variables: the gradients of a group are reduced as one operation.
        process_set: the ranks to reduce over. Ranks outside get their own gradients.
        scale_local_gradients: divides gradients of local sources, which are not reduced, by the number of
            ranks.
    """
    if not isinstance(gradtape, tf.GradientTape):
        advice = (
            " Give an optimizer to hvd.DistributedOptimizer." if hasattr(gradtape, "apply_gradients") else ""
        )
        raise ValueError(
            f"DistributedGradientTape wraps a tf.GradientTape, not {type(gradtape).__name__}.{advice}"
        )
    if isinstance(gradtape, _DistributedTape):
        raise ValueError("The tape is distributed already: its gradients would be reduced twice.")
    runtime.engine()  # an error, here and not in gradient(), if there is none
    rules = Rules(
        op,
        compression,
        gradient_predivide_factor,
        sparse_as_dense,
        check_groups(num_groups, groups),
        process_set,
        device_dense,
        device_sparse,
        scale_local_gradients,
    )
    base = type(gradtape)
    distributed: Any = type(base.__name__, (_DistributedTape, base), {"__doc__": base.__doc__})
    tape = object.__new__(distributed)
    tape.__dict__ = vars(gradtape)  # what one of them records, the other has
    tape._rules = rules
    tape._local_sources = VariableSet()
    tape._reduce = _make_allreduce_grads_fn("DistributedGradientTape", rules)
    return tape


@unconverted
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A :func:`DistributedGradientTape` that leaves the weights of ``local_layers`` (one layer, or several)
    to each rank."""
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for weight in local_weights(local_layers):
        tape.register_local_source(weight)
    return tape


class _DistributedTape(tf.GradientTape):
    """What :func:`DistributedGradientTape` adds to the class of a tape."""

    _rules: Rules
    _local_sources: VariableSet
    _reduce: Reduce

    def register_local_source(self, var: Any) -> None:
        """The gradient of ``var`` is this rank's own: it is not reduced."""
        self._local_sources.add(var)

    @unconverted
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The reduced gradients, in the form of ``sources``."""
        if isinstance(use_generic_names, str | tf.UnconnectedGradients):  # tf.GradientTape's fourth argument
            use_generic_names, unconnected_gradients = False, use_generic_names
        grads = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat_sources, flat_grads = _flat(sources), _flat_like(sources, grads)
        reduced = self._reduced(flat_sources, flat_grads, use_generic_names)
        return reduced[0] if _is_leaf(sources) else tf.nest.pack_sequence_as(sources, reduced)

    @unconverted
    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Gradient]], list[tuple[Any, Gradient]]]:
        """Pairs of variables and gradients: those of local sources, and the reduced ones."""
        grads = super().gradient(target, sources, output_gradients)
        flat = _flat(sources)
        reduced = self._reduced(flat, _flat_like(sources, grads), use_generic_names)
        pairs = list(zip(flat, reduced, strict=True))
        local = [(var, grad) for var, grad in pairs if var in self._local_sources]
        return local, [(var, grad) for var, grad in pairs if var not in self._local_sources]

    def _reduced(
        self, sources: Sequence[Any], grads: Sequence[Gradient], use_generic_names: bool
    ) -> list[Gradient]:
        local = [source in self._local_sources for source in sources]
        shared = [None if own else grad for own, grad in zip(local, grads, strict=True)]
        reduced = self._reduce(shared, sources, use_generic_names)
        return [
            scaled_local(self._rules, grad) if own else common
            for own, grad, common in zip(local, grads, reduced, strict=True)
        ]


def _is_leaf(sources: Any) -> bool:
    return not tf.nest.is_nested(sources)


def _flat(sources: Any) -> list[Any]:
    return [sources] if _is_leaf(sources) else list(tf.nest.flatten(sources))


def _flat_like(sources: Any, grads: Any) -> list[Gradient]:
    """The gradients, of which ``IndexedSlices`` are one each."""
    if _is_leaf(sources):
        return [grads]
    flat: list[Gradient] = tf.nest.flatten(grads)
    return flat
