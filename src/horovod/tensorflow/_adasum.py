"""Adasum with the optimizers of TensorFlow 1: every rank steps on its own, the steps are combined.

At the start of a round each variable is remembered in a slot, ``delta_start``; after
``backward_passes_per_step`` steps of the wrapped optimizer the difference is what Adasum combines.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.tensorflow._gradients import Rules, _make_allreduce_grads_fn

__all__ = ["_DistributedAdasumOptimizer"]


class _DistributedAdasumOptimizer(tf.compat.v1.train.Optimizer):
    """Combines the steps of the wrapped optimizer."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        rules: Rules,
        backward_passes_per_step: int,
    ) -> None:
        name = name or f"DistributedDelta{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer, self._rules = optimizer, rules
        self._passes = backward_passes_per_step
        self._reduce = _make_allreduce_grads_fn(name, rules)
        self._steps: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """This rank's own."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Steps; at the end of a round the ranks' steps since its beginning are combined."""
        pairs = list(grads_and_vars)
        if not self._rules.reduces:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        variables = [variable for grad, variable in pairs if grad is not None]
        starts = [self._start_of(variable) for variable in variables]
        steps = self._counter()

        def remember() -> Any:
            return tf.group(
                *[start.assign(variable) for start, variable in zip(starts, variables, strict=True)]
            )

        with tf.control_dependencies([_only_if(tf.equal(steps % self._passes, 0), remember)]):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([stepped]):
            count = steps.assign_add(1, read_value=True)
        with tf.control_dependencies([count]):
            return _only_if(tf.equal(count % self._passes, 0), lambda: self._combine(variables, starts))

    def _combine(self, variables: list[Any], starts: list[Any]) -> Any:
        before = [start.read_value() for start in starts]
        deltas = [variable.read_value() - start for variable, start in zip(variables, before, strict=True)]
        combined = self._reduce(deltas, variables)
        return tf.group(
            *[
                variable.assign(start + delta)
                for variable, start, delta in zip(variables, before, combined, strict=True)
            ]
        )

    def _start_of(self, variable: Any) -> Any:
        with tf.init_scope():
            slot = self.get_slot(variable, "delta_start")
            return self._zeros_slot(variable, "delta_start", self._name) if slot is None else slot

    def _counter(self) -> Any:
        with tf.init_scope():
            if self._steps is None:
                self._steps = tf.compat.v1.Variable(
                    0, trainable=False, use_resource=True, dtype=tf.int64, name=f"{self._name}_steps"
                )
        return self._steps

    def get_slot(self, var: Any, name: str) -> Any:
        """``delta_start``, or a slot of the wrapped optimizer."""
        return super().get_slot(var, name) if name == "delta_start" else self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Those of the wrapped optimizer, and ``delta_start``."""
        return sorted({*self._optimizer.get_slot_names(), "delta_start"})

    def variables(self) -> list[Any]:
        """Those of the wrapped optimizer, and this one's own."""
        return [*self._optimizer.variables(), *super().variables()]


def _only_if(condition: tf.Tensor, do: Any) -> Any:
    def done() -> tf.Tensor:
        with tf.control_dependencies([do()]):
            return tf.constant(True)

    return tf.group(tf.cond(condition, done, lambda: tf.constant(False)))
