"""``model.fit``: workers with parts of a batch learn what one with the whole batch learns."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.marks import SLOW, on_keras
from tests.support.world import Workers
from tests.tensorflow.marks import needs_xla

pytestmark = SLOW


@on_keras(1, 2)
@pytest.mark.parametrize(
    "optimizer", ["sgd", "adam", "clipnorm", "clipvalue", "global_clipnorm", "weight_decay"]
)
def test_like_one_worker_on_the_whole_batch(world: Workers, optimizer: str) -> None:
    world.run(_like_one_worker, optimizer, {})


@on_keras(2)
def test_run_eagerly(world: Workers) -> None:
    world.run(_like_one_worker, "adam", {"run_eagerly": True})


@on_keras(2, kinds=("tensorflow", "tf_keras"))  # torch knows of one only
def test_several_steps_per_execution(world: Workers) -> None:
    world.run(_like_one_worker, "sgd", {"steps_per_execution": 2})


@needs_xla
@on_keras(2, kinds=("tensorflow", "tf_keras"))
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "global_clipnorm"])
def test_jit_compile(world: Workers, optimizer: str) -> None:
    """XLA compiles the step with its reductions; the oracle is not compiled."""
    world.run(_compiled_like_one_worker, optimizer)


@needs_xla
@on_keras(2, kinds=("tensorflow", "tf_keras"))
def test_jit_compile_of_several_passes(world: Workers) -> None:
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    world.run(_compiled_like_itself, options)


def _compiled_like_one_worker(optimizer: str) -> None:
    from tests.keras import training

    make = training.MAKERS[optimizer]
    together = training.fit_together(make, jit_compile=True)
    training.assert_learnt(together)
    training.assert_same(together, training.fit_alone(make, jit_compile=False))
    training.assert_same_everywhere(together)


def _compiled_like_itself(options: dict[str, Any]) -> None:
    from tests.keras import training

    make = training.MAKERS["sgd"]
    together = training.fit_together(make, options=options, jit_compile=True)
    training.assert_same(together, training.fit_together(make, options=options, jit_compile=False))
    training.assert_same_everywhere(together)


def _like_one_worker(optimizer: str, compiling: dict[str, Any]) -> None:
    from tests.keras import training

    make = training.MAKERS[optimizer]
    together = training.fit_together(make, **compiling)
    training.assert_learnt(together)
    training.assert_same(together, training.fit_alone(make, **compiling))
    training.assert_same_everywhere(together)


@on_keras(3, kinds=("tensorflow",))
def test_three_workers(world: Workers) -> None:
    world.run(_like_one_worker, "adam", {})


@on_keras(2)
@pytest.mark.parametrize(
    "options",
    [{"num_groups": 2}, {"groups": 1}, {"gradient_predivide_factor": 4.0}, {"sparse_as_dense": True}],
    ids=str,
)
def test_options_that_change_nothing(world: Workers, options: dict[str, Any]) -> None:
    world.run(_options, options)


def _options(options: dict[str, Any]) -> None:
    from tests.keras import training

    together = training.fit_together(training.MAKERS["adam"], options=options)
    training.assert_same(together, training.fit_alone(training.MAKERS["adam"]))


@on_keras(2)
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(world: Workers, compression: str) -> None:
    world.run(_compression, compression)


def _compression(compression: str) -> None:
    from tests.keras import training

    options = {"compression": getattr(training.hvd.Compression, compression)}
    together = training.fit_together(training.MAKERS["sgd"], options=options)
    alone = training.fit_alone(training.MAKERS["sgd"])
    training.assert_same(together, alone, rtol=0.05, atol=0.02)
    training.assert_same_everywhere(together)


@on_keras(2)
def test_sum(world: Workers) -> None:
    world.run(_sum)


def _sum() -> None:
    """The sum of the workers' means is so many times their mean."""
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    together = training.fit_together(lambda: keras.optimizers.SGD(0.05), options={"op": hvd.Sum})
    alone = training.fit_alone(lambda: keras.optimizers.SGD(0.05 * hvd.size()))
    training.assert_same(together, alone)


@on_keras(1, 2)
@pytest.mark.parametrize("average", [False, True])
def test_several_passes_per_step(world: Workers, average: bool) -> None:
    world.run(_passes, average)


def _passes(average: bool) -> None:
    """Two steps of half batches are one of a whole one: of sums, or means."""
    from tests.keras import training

    hvd, keras, rows = training.hvd, training.keras, training.ROWS
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
    together = training.model()
    made = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), **options)
    together.compile(optimizer=made, loss="mse")
    x, y = (training.own(array) for array in training.data(4))
    training.fit(together, (x, y), rows // hvd.size())
    alone = training.model()
    alone.compile(optimizer=keras.optimizers.SGD(0.05 * (1 if average else 2)), loss="mse")
    training.fit(alone, training.data(4), 2 * rows)
    training.assert_same(together, alone)
    assert int(made.iterations.numpy() if hasattr(made.iterations, "numpy") else made.iterations) == 4


@on_keras(2)
def test_a_step_of_ones_own(world: Workers) -> None:
    world.run(_apply)


def _apply() -> None:
    """``apply_gradients`` outside of ``fit``."""
    import numpy as np

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variable = keras.layers.Dense(2, use_bias=False, dtype="float64")
    variable.build((None, 3))
    (kernel,) = variable.trainable_weights
    before = variable.get_weights()[0]
    if training.KIND == "torch":
        import torch

        grad: Any = torch.full((3, 2), float(hvd.rank()), dtype=torch.float64)
        kept = grad.clone()
        with torch.no_grad():
            optimizer.apply_gradients([(grad, kernel)])
        assert torch.equal(grad, kept), "the caller's tensor is left alone"
    else:
        import tensorflow as tf

        grad = tf.fill([3, 2], tf.constant(float(hvd.rank()), tf.float64))
        optimizer.apply_gradients([(grad, kernel)])
    mean = sum(range(hvd.size())) / hvd.size()
    np.testing.assert_allclose(variable.get_weights()[0], before - mean)
