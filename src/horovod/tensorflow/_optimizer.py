"""``DistributedOptimizer`` for the optimizers of TensorFlow 1: wrappers, as they delegate everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod._core import runtime
from horovod._core.gradient_options import check_groups, check_passes
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import Adasum, Average, reduction_of
from horovod.tensorflow._adasum import _DistributedAdasumOptimizer
from horovod.tensorflow._gradients import Rules, _make_allreduce_grads_fn, scaled_local
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.util import VariableSet

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like ``optimizer`` whose gradients are reduced over all ranks before they are applied.

    Args:
        optimizer: a ``tf.compat.v1.train.Optimizer``, or a Keras optimizer.
        name: of the new optimizer; by default ``"Distributed"`` before the class's.
        use_locking: as for ``tf.compat.v1.train.Optimizer``.
        device_dense: the device that reduces tensors, if not theirs.
        device_sparse: the device that gathers ``tf.IndexedSlices``, if not theirs.
        compression: as what type gradients travel.
        sparse_as_dense: makes ``tf.IndexedSlices`` dense before they are reduced.
        backward_passes_per_step: how many steps add up to one that is applied.
        op: ``Average``, ``Sum``, or ``Adasum`` (``tf.compat.v1`` only: the ranks' steps are combined).
        gradient_predivide_factor: averages are divided by it before the sum and by ``size / factor`` after.
        average_aggregated_gradients: divides what adds up by ``backward_passes_per_step``.
        num_groups: the old name of ``groups``.
        groups: a number, or lists of variables: the gradients of a group are reduced as one operation.
        process_set: the ranks to reduce over. Ranks outside step on their own.
        scale_local_gradients: divides gradients of local variables, which are not reduced, by the number of
            ranks.
    """
    runtime.engine()  # an error, here and not in the first step, if there is none
    check_passes(backward_passes_per_step)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True.")
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
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if op == Adasum:
            raise ValueError(
                "op=hvd.Adasum is not supported with Keras optimizers. Use hvd.DistributedGradientTape("
                "op=hvd.Adasum), or an optimizer of tf.compat.v1.train."
            )
        from horovod.tensorflow import keras

        return keras.DistributedOptimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    if op == Adasum:
        reduction_of(op, None, process_set.process_set_id)
        return _DistributedAdasumOptimizer(optimizer, name, use_locking, rules, backward_passes_per_step)
    if tf.executing_eagerly() and backward_passes_per_step > 1:
        raise ValueError(
            "backward_passes_per_step > 1 is not supported yet with tf.compat.v1.train optimizers in eager "
            "execution: use a Keras optimizer."
        )
    return _DistributedOptimizer(
        optimizer, name, use_locking, rules, backward_passes_per_step, average_aggregated_gradients
    )


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """Reduces what the wrapped optimizer computes, and has it apply that."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        rules: Rules,
        backward_passes_per_step: int,
        average_aggregated_gradients: bool,
    ) -> None:
        name = name or f"Distributed{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer, self._rules = optimizer, rules
        self._local_vars = VariableSet()
        self._allreduce_grads = _make_allreduce_grads_fn(name, rules)
        self._agg_helper: LocalGradientAggregationHelper | None = None
        if backward_passes_per_step > 1:
            self._agg_helper = LocalGradientAggregationHelper(
                backward_passes_per_step, self._allreduce_grads, rules, average_aggregated_gradients
            )

    def register_local_var(self, var: Any) -> None:
        """The gradient of ``var`` is this rank's own: it is not reduced."""
        self._local_vars.add(var)
        if self._agg_helper is not None:
            self._agg_helper.register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of reduced gradients and variables."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return []
        grads, variables = zip(*pairs, strict=True)
        if self._agg_helper is not None:
            return list(zip(self._agg_helper.compute_gradients(grads, variables), variables, strict=True))
        local = [variable in self._local_vars for variable in variables]
        shared = [None if own else grad for own, grad in zip(local, grads, strict=True)]
        reduced = self._allreduce_grads(shared, variables)
        return [
            (scaled_local(self._rules, grad) if own else common, variable)
            for own, grad, common, variable in zip(local, grads, reduced, variables, strict=True)
        ]

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Applies them by the wrapped optimizer; every so many steps, if they add up."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._agg_helper is None:
            return apply()
        with tf.control_dependencies([grad for grad, _ in pairs if grad is not None]):
            return self._agg_helper.apply_gradients(apply, self._optimizer, global_step=global_step)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)
