"""Bringing all ranks to the same state: variables, global variables, objects; normalisation over all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.outcomes import assert_raised, error_of
from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds

pytestmark = pytest.mark.timeout(300)


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("inplace", [False, True])
def test_broadcast_variables(world: Workers, mode: str, inplace: bool) -> None:
    world.run(_variables, mode, inplace)


def _variables(mode: str, inplace: bool) -> None:
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    root = hvd.size() - 1
    types = [tf.float32, tf.float64, tf.int64, tf.bool, tf.bfloat16]
    types += [] if inplace else [tf.uint32, tf.complex64]
    made = [tf.Variable(tf.cast(tf.fill([3], hvd.rank() + 1), kind)) for kind in types]
    made.append(tf.Variable(float(hvd.rank())))
    other = [tf.Variable([hvd.rank()] * 2)]

    def broadcast() -> None:
        hvd.broadcast_variables(made, root_rank=root, inplace=inplace)
        hvd.broadcast_variables(other, root_rank=0, inplace=inplace)

    training.maybe_function(broadcast, mode)()
    for variable, kind in zip(made[:-1], types, strict=True):
        expected = tf.cast(tf.fill([3], root + 1), kind)
        np.testing.assert_array_equal(variable.numpy(), expected.numpy())
    assert float(made[-1]) == root
    assert other[0].numpy().tolist() == [0, 0]


@on_worlds(2)
def test_variables_of_keras(world: Workers) -> None:
    world.run(_keras_variables)


def _keras_variables() -> None:
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd

    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
    optimizer = tf.keras.optimizers.Adam(0.1 * (hvd.rank() + 1))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    weights = hvd.allgather_object([weight.tolist() for weight in model.get_weights()])
    assert weights[0] == weights[-1]
    np.testing.assert_allclose(float(np.asarray(optimizer.learning_rate)), 0.1, rtol=1e-6)


@on_worlds(2)
def test_global_variables_and_the_hook(world: Workers) -> None:
    world.run(_global_variables)


def _global_variables() -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=float(hvd.rank() + 5))
        with v1.Session() as session:
            everything = hvd.broadcast_global_variables(1)
            session.run(v1.global_variables_initializer())
            session.run(everything)
            assert session.run(weight) == 6.0
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as monitored:
            assert monitored.run(weight) == 5.0
    assert_raised([error_of(hvd.broadcast_global_variables, 0)], "RuntimeError", "hvd.broadcast_variables")


@on_worlds(1, 2)
def test_objects(world: Workers) -> None:
    world.run(_objects)


def _objects() -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    mine = {"rank": hvd.rank(), "more": [1, 2] * hvd.rank()}
    assert hvd.broadcast_object(mine, root_rank=0) == {"rank": 0, "more": []}
    assert hvd.broadcast_object_fn(root_rank=hvd.size() - 1)(hvd.rank()) == hvd.size() - 1
    assert hvd.allgather_object(mine)[-1] == {"rank": hvd.size() - 1, "more": [1, 2] * (hvd.size() - 1)}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert hvd.broadcast_object("graph", 0, session=session, name="object") == "graph"


@on_worlds(2)
def test_what_is_no_variable(world: Workers) -> None:
    for message in world.run(_no_variable):
        assert "takes variables, not int" in message


def _no_variable() -> str:
    import horovod.tensorflow as hvd

    try:
        hvd.broadcast_variables([3], root_rank=0)
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was raised")


@on_worlds(1, 2)
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_sync_batch_normalization(world: Workers, mode: str) -> None:
    world.run(_normalises, mode)


def _normalises(mode: str) -> None:
    """Output, gradients and moving statistics are those of the whole batch."""
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    random = np.random.default_rng(0)
    whole = tf.constant(random.normal(size=(6, 4)) * 3 + 1)
    share = 6 // hvd.size()
    rows = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    ours = hvd.SyncBatchNormalization(dtype="float64")
    plain = tf.keras.layers.BatchNormalization(dtype="float64")
    for layer in (ours, plain):
        layer.build((None, 4))

    def run(layer: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y**3)
        return y, tape.gradient(loss, x)

    y, gradient = training.maybe_function(run, mode)(ours, whole[rows])
    expected, of_whole = run(plain, whole)
    np.testing.assert_allclose(y, expected[rows], atol=1e-8)
    # The gradient of an average is averaged: this rank's loss counts once, not as one of several.
    np.testing.assert_allclose(gradient, of_whole[rows], atol=1e-6)
    np.testing.assert_allclose(ours.moving_mean, plain.moving_mean, atol=1e-8)
    np.testing.assert_allclose(ours.moving_variance, plain.moving_variance, atol=1e-8)
    assert ours.name.startswith("sync_batch_normalization")
    assert_raised([error_of(hvd.SyncBatchNormalization, fused=True)], "ValueError", "fused")
