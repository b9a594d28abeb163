"""Keras, once for all: Keras 3 on TensorFlow or torch, and ``tf_keras``.

``horovod.keras`` and ``horovod.tensorflow.keras`` are thin: they say which Keras they mean. The parts:

- ``optimizer``: an optimizer whose gradients are reduced; which Keras it is of, its class tells;
- ``backends``: what differs between frameworks: reducing gradients, adding them up, tensors of values;
- ``callbacks``, ``state`` (broadcasting variables, averaging metrics), ``loading``: any Keras, any framework.
"""

from __future__ import annotations

from horovod._keras.optimizer import create_distributed_optimizer, is_distributed

__all__ = ["create_distributed_optimizer", "is_distributed"]
