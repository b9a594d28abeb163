"""A small model of TensorFlow's own variables, and the oracle. Runs in the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod._core.objects import allgather_object

ROWS = 12
"""Of a batch: as many for each of 1, 2 and 3 ranks."""
WIDE = 520
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
"""Equal but for the order of additions, in double precision."""


def variables(seed: int = 0) -> list[Any]:
    """Two layers: matrices that are reduced on their own (in a graph), and biases that share an operation."""
    random = np.random.default_rng(seed)
    shapes = [(6, WIDE), (WIDE,), (WIDE, 4), (4,)]
    return [tf.Variable(random.normal(size=shape) * 0.1) for shape in shapes]


def batch(step: int) -> tuple[Any, Any]:
    """Input and target of one step, of all ranks together."""
    random = np.random.default_rng(1000 + step)
    return tf.constant(random.normal(size=(ROWS, 6))), tf.constant(random.normal(size=(ROWS, 4)))


def own(tensor: Any) -> Any:
    """This rank's rows of a batch."""
    share = ROWS // hvd.size()
    return tensor[hvd.rank() * share : (hvd.rank() + 1) * share]


def loss_of(model: list[Any], data: Any, target: Any) -> Any:
    """The mean over the rows: its gradient is the average of those of equal parts."""
    first, offset, second, end = model
    output = tf.tanh(data @ first + offset) @ second + end
    return tf.reduce_mean(tf.square(output - target))


def plain_gradients(model: list[Any], data: Any, target: Any) -> list[Any]:
    """The oracle: of the whole batch, by TensorFlow alone."""
    with tf.GradientTape() as tape:
        loss = loss_of(model, data, target)
    gradients: list[Any] = tape.gradient(loss, model)
    return gradients


def maybe_function(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """As it is, or compiled to a graph."""
    if mode == "eager":
        return function
    compiled: Callable[..., Any] = tf.function(function)
    return compiled


def assert_close(values: Any, expected: Any, **tolerance: float) -> None:
    """Equal but for rounding."""
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_allclose(np.asarray(value), np.asarray(other), **(tolerance or CLOSE))


def assert_same_everywhere(values: Any) -> None:
    """The same bits on all ranks."""
    everybody = allgather_object([np.asarray(value).tobytes() for value in values])
    assert all(one == everybody[0] for one in everybody)
