"""Local gradient aggregation: the gradients of several steps add up before they are reduced.

The sums are in variables of their own; everything is made of TensorFlow operations, so that it works in
graphs of TensorFlow 1, in ``tf.function`` and eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod._core.gradient_options import check_passes
from horovod.tensorflow._gradients import Gradient, Reduce, Rules, scaled_local
from horovod.tensorflow.util import VariableSet, key_of, plain, unconverted

__all__ = ["LocalGradientAggregationHelper"]


class LocalGradientAggregationHelper:
    """Adds up gradients, and reduces the sums in every ``backward_passes_per_step``-th step.

    Args:
        backward_passes_per_step: so many steps make one.
        allreduce_func: ``(gradients, variables) -> reduced gradients``.
        rules: how gradients are reduced: whether sparse ones may be made dense, and local ones are scaled.
        average_aggregated_gradients: divides the sums by the number of steps.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        rules: Rules,
        average_aggregated_gradients: bool = False,
    ) -> None:
        check_passes(backward_passes_per_step)
        self.backward_passes_per_step = backward_passes_per_step
        self.average_aggregated_gradients = average_aggregated_gradients
        self.counter: Any = None
        """A variable: the steps since the last reduction."""
        self._allreduce, self._rules = allreduce_func, rules
        self._sums: dict[int, Any] = {}
        self._local = VariableSet()

    def register_local_var(self, var: Any) -> None:
        """The gradient of ``var`` is this rank's own: it is added up, but not reduced."""
        self._local.add(var)

    @unconverted
    def compute_gradients(self, grads: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        """Takes the gradients of a step; in the last one of a round, returns the reduced sums.

        In all others what it returns is of no use: :meth:`apply_gradients` does not use it.
        """
        dense = [self._dense(grad, variable) for grad, variable in zip(grads, variables, strict=True)]
        present = [number for number, grad in enumerate(dense) if grad is not None]
        self._prepare([variables[number] for number in present], [dense[number] for number in present])
        sums = [self._sums[key_of(variables[number])] for number in present]
        added = [total.assign_add(dense[number]) for total, number in zip(sums, present, strict=True)]
        with tf.control_dependencies(added):
            count = self.counter.assign_add(1, read_value=True)
        with tf.control_dependencies([count]):
            results = tf.cond(
                tf.equal(count, self.backward_passes_per_step),
                lambda: self._finish([variables[number] for number in present], sums),
                lambda: [total.read_value() for total in sums],
            )
        results = [results] if isinstance(results, tf.Tensor) else results  # tf.cond unpacks lists of one
        found: list[Gradient] = [None] * len(dense)
        for number, result in zip(present, results, strict=True):
            found[number] = result
        return found

    @unconverted
    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *_args: Any, **kwargs: Any
    ) -> Any:
        """Calls the closure in the last step of a round; in the others only counts the step.

        Must depend on what :meth:`compute_gradients` returned, as everything in ``tf.function`` does.
        """
        ended = tf.equal(self.counter.read_value(), 0)

        def apply() -> tf.Tensor:
            applied = apply_grads_closure()  # nothing, if it is Keras 3: tf.function sees to the order
            with tf.control_dependencies([] if applied is None else [tf.group(applied)]):
                return tf.constant(True)

        def skip() -> tf.Tensor:
            with tf.control_dependencies([self._count(optimizer, kwargs.get("global_step"))]):
                return tf.constant(False)

        return tf.group(tf.cond(ended, apply, skip))

    def _dense(self, grad: Gradient, variable: Any) -> Gradient:
        if not isinstance(grad, tf.IndexedSlices):
            return grad
        if not self._rules.sparse_as_dense:
            raise ValueError(
                f"The gradient of {variable.name} is sparse (tf.IndexedSlices), and backward_passes_per_step="
                f"{self.backward_passes_per_step} adds gradients up: give sparse_as_dense=True, too."
            )
        return tf.convert_to_tensor(grad)

    def _prepare(self, variables: Sequence[Any], grads: Sequence[tf.Tensor]) -> None:
        """Makes the variables that are missing, outside of functions and conditions."""
        with tf.init_scope():
            if self.counter is None:
                self.counter = _variable(tf.TensorShape([]), tf.int32, "aggregation_counter")
            for variable, grad in zip(variables, grads, strict=True):
                if key_of(variable) not in self._sums:
                    shape = plain(variable).shape
                    self._sums[key_of(variable)] = _variable(shape, grad.dtype, "aggregated_gradient")

    def _finish(self, variables: Sequence[Any], sums: Sequence[Any]) -> list[tf.Tensor]:
        totals = [total.read_value() for total in sums]
        if self.average_aggregated_gradients:
            totals = [total / self.backward_passes_per_step for total in totals]
        local = [variable in self._local for variable in variables]
        shared = [None if own else total for own, total in zip(local, totals, strict=True)]
        reduced = self._allreduce(shared, variables)
        results = [
            scaled_local(self._rules, total) if own else common
            for own, total, common in zip(local, totals, reduced, strict=True)
        ]
        with tf.control_dependencies([tf.identity(total) for total in totals]):
            # Zeros, not a multiplication: an infinity would stay for ever.
            cleared = [total.assign(tf.zeros_like(total)) for total in sums] + [self.counter.assign(0)]
        with tf.control_dependencies(cleared):
            return [tf.identity(result) for result in results]

    @staticmethod
    def _count(optimizer: Any, global_step: Any) -> Any:
        if global_step is not None:
            return tf.group(global_step.assign_add(1))
        iterations = getattr(optimizer, "iterations", None)
        return tf.group() if iterations is None else tf.group(plain(iterations).assign_add(1))


def _variable(shape: tf.TensorShape, dtype: tf.DType, name: str) -> Any:
    return tf.compat.v1.Variable(
        lambda: tf.zeros(shape, dtype), trainable=False, use_resource=True, dtype=dtype, name=name
    )
