"""Keras on TensorFlow: Keras 3, and ``tf_keras``."""

from __future__ import annotations

from typing import Any

from horovod._core.frontends import frontend
from horovod._keras.backends import Aggregation, Reduce

__all__ = ["TensorFlow"]


class TensorFlow:
    """Hands everything to ``horovod.tensorflow``."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self._gradients = frontend("tensorflow._gradients")
        self._util = frontend("tensorflow.util")

    def compression(self) -> Any:
        return self._hvd.Compression

    def reducer(self, name: str, options: dict[str, Any]) -> Reduce:
        reduce: Reduce = self._gradients._make_allreduce_grads_fn(name, self._rules(options))
        return reduce

    def scaled_local(self, options: dict[str, Any], grad: Any) -> Any:
        return self._gradients.scaled_local(self._rules(options), grad)

    def aggregation(self, passes: int, reduce: Reduce, options: dict[str, Any], average: bool) -> Aggregation:
        module = frontend("tensorflow.gradient_aggregation_eager")
        helper: Aggregation = module.LocalGradientAggregationHelperEager(
            passes, reduce, self._rules(options), average
        )
        return helper

    def key_of(self, variable: Any) -> int:
        key: int = self._util.key_of(variable)
        return key

    def tensor(self, value: Any) -> Any:
        import tensorflow as tf

        return tf.convert_to_tensor(value)

    def operations(self) -> Any:
        return self._hvd

    def _rules(self, options: dict[str, Any]) -> Any:
        return self._gradients.Rules(**options)
