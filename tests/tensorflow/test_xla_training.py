"""Gradients and training steps that XLA compiles, against those that it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.world import Workers
from tests.tensorflow.marks import needs_xla, on_worlds

pytestmark = [pytest.mark.timeout(400), needs_xla]

DIFFERENTIABLE: dict[str, Callable[[Any, Any], Any]] = {
    "allreduce": lambda hvd, x: hvd.allreduce(x, prescale_factor=0.5, postscale_factor=3.0),
    "grouped_allreduce": lambda hvd, x: hvd.grouped_allreduce([x, 2.0 * x], op=hvd.Sum),
    "allgather": lambda hvd, x: hvd.allgather(x),
    "grouped_allgather": lambda hvd, x: hvd.grouped_allgather([x, x * 3.0]),
    "broadcast": lambda hvd, x: hvd.broadcast(x, hvd.size() - 1),
    "alltoall": lambda hvd, x: hvd.alltoall(x[:6]),
    "reducescatter": lambda hvd, x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5),
    "grouped_reducescatter": lambda hvd, x: hvd.grouped_reducescatter([x, 2.0 * x]),
    "twice": lambda hvd, x: hvd.allreduce(hvd.allreduce(x) * x),
}
"""Of seven rows, which two or three ranks cannot share evenly."""


@on_worlds(2, 3)
@pytest.mark.parametrize("tape", ["inside", "outside"])
@pytest.mark.parametrize("case", DIFFERENTIABLE)
def test_gradients(world: Workers, case: str, tape: str) -> None:
    world.run(_gradients, DIFFERENTIABLE[case], tape == "inside")


def _gradients(operation: Callable[[Any, Any], Any], inside: bool) -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    def loss(x):
        results = tf.nest.flatten(operation(hvd, x))
        weight = float(hvd.rank() + 1)
        return tf.add_n([tf.reduce_sum(tf.cumsum(tf.ones_like(y)) * weight * y) for y in results])

    def gradient(x, function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        return tape.gradient(value, x)

    x = tf.reshape(tf.range(14.0), [7, 2])
    if inside:
        compiled = tf.function(lambda x: gradient(x, loss), jit_compile=True, autograph=False)
    else:
        function = tf.function(loss, jit_compile=True, autograph=False)

        def compiled(x):
            return gradient(x, function)

    wanted = gradient(x, loss)
    for _ in range(2):
        np.testing.assert_allclose(compiled(x).numpy(), wanted.numpy(), rtol=1e-6)


@on_worlds(1, 2)
@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"compression": "fp16"}], ids=str)
def test_tape(world: Workers, options: dict[str, Any]) -> None:
    """Steps of training: as without XLA, but for rounding; the same bits on all ranks."""
    world.run(_train, options)


def _train(options: dict[str, Any]) -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    given = dict(options)
    if "compression" in given:
        given["compression"] = getattr(hvd.Compression, given["compression"])

    def trained(compile_it: bool) -> list[Any]:
        model = training.variables()

        @tf.function(jit_compile=compile_it)
        def step(data, target):
            with tf.GradientTape() as tape:
                loss = training.loss_of(model, data, target)
            tape = hvd.DistributedGradientTape(tape, **given)
            for variable, grad in zip(model, tape.gradient(loss, model), strict=True):
                variable.assign_sub(0.1 * grad)
            return loss

        for number in range(4):
            step(*[training.own(part) for part in training.batch(number)])
        return model

    compiled = trained(True)
    rounding = {"rtol": 1e-2, "atol": 1e-3} if "compression" in options else training.CLOSE
    training.assert_close(compiled, trained(False), **rounding)
    training.assert_same_everywhere(compiled)


@on_worlds(2)
def test_one_operation_for_all_gradients(world: Workers) -> None:
    """XLA runs one at a time, so they go together."""
    assert world.run(_submitted) == [1, 1]


def _submitted() -> int:
    import tensorflow as tf

    import horovod.numpy as plain
    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    model = training.variables()

    @tf.function(jit_compile=True)
    def gradients(data, target):
        with tf.GradientTape() as tape:
            loss = training.loss_of(model, data, target)
        return hvd.DistributedGradientTape(tape).gradient(loss, model)

    before = plain.counters()["submitted"]
    gradients(*[training.own(part) for part in training.batch(0)])
    return plain.counters()["submitted"] - before


@on_worlds(2)
def test_broadcast_variables(world: Workers) -> None:
    assert world.run(_broadcast_variables) == [[[1.0, 1.0], 3]] * 2


def _broadcast_variables() -> list[Any]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    variables = [tf.Variable([float(hvd.rank())] * 2), tf.Variable(2 + hvd.rank())]

    @tf.function(jit_compile=True, autograph=False)
    def start():
        hvd.broadcast_variables(variables, root_rank=1)

    start()
    return [variable.numpy().tolist() for variable in variables]
