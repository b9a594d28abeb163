"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod._core.process_sets import global_process_set
from horovod._core.reduction import Average
from horovod.tensorflow.mpi_ops import grouped_allreduce
from horovod.tensorflow.util import unique_name

__all__ = ["SyncBatchNormalization"]

_LEGACY = tf.keras.layers.BatchNormalization.__module__.startswith("tf_keras.")


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Like ``tf.keras.layers.BatchNormalization``, with mean and variance of the batches of all ranks.

    Every rank's batch weighs the same. Alone, and when not training, it is a plain batch normalisation.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if _LEGACY:  # which else computes images by a kernel that asks nobody for their moments
            kwargs["fused"] = False
        super().__init__(**kwargs)
        if tf.keras.backend.backend() != "tensorflow":
            raise ValueError(
                "horovod.tensorflow.SyncBatchNormalization needs Keras with the TensorFlow backend; for "
                "torch there is horovod.torch.SyncBatchNorm."
            )

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Keras asks for mean and variance of the batch; in ``tf_keras`` with the axes to reduce over."""
        mean, variance = super()._moments(inputs, *args, **kwargs)
        size = global_process_set.size()
        if size is None or size == 1 or global_process_set.ranks is None:
            return mean, variance
        label = unique_name("SyncBatchNormalization")
        mean, square = _average([mean, variance + tf.square(mean)], label)
        return mean, square - tf.square(mean)


def _average(tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
    averages: list[tf.Tensor] = grouped_allreduce(tensors, op=Average, name=name)
    return averages
