"""Graphs and sessions of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds


@on_worlds(1, 2, 3)
def test_every_operation(world: Workers) -> None:
    size = len(world.pids)
    everybody = np.concatenate([np.full((2, 1), rank + 1.0) for rank in range(size)])
    total = sum(range(1, size + 1))
    for rank, results in enumerate(world.run(_session)):
        np.testing.assert_allclose(results["sum"], np.full((2, 1), total))
        np.testing.assert_allclose(results["group"][1], np.full((2, 1), 2.0 * total / size))
        np.testing.assert_allclose(results["gather"], everybody)
        np.testing.assert_allclose(results["broadcast"], np.full((2, 1), size))
        np.testing.assert_allclose(results["gradient"], np.full((2, 1), 2.0 * size))
        assert results["rank"] == rank
        assert results["size"] == size


def _session() -> dict[str, Any]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2, 1], name="x")
        summed = hvd.allreduce(x, op=hvd.Sum)
        fetches = {
            "sum": summed,
            "group": hvd.grouped_allreduce([x, 2.0 * x]),
            "gather": hvd.allgather(x),
            "broadcast": hvd.broadcast(x, hvd.size() - 1),
            "gradient": tf.compat.v1.gradients(2.0 * summed, x)[0],
            "rank": hvd.rank_op(),
            "size": hvd.size_op(),
        }
        feed = {x: np.full((2, 1), hvd.rank() + 1.0)}
        results = [session.run(fetches, feed) for _ in range(3)]
    first: dict[str, Any] = results[0]
    return first


@on_worlds(2)
def test_loops_of_sessions(world: Workers) -> None:
    assert world.run(_loop) == [1.5 * sum(range(20))] * 2


def _loop() -> float:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        own = float(hvd.rank() + 1)

        def body(i, total):
            return i + 1, total + hvd.allreduce(tf.cast(i, tf.float32) * own)

        _, total = tf.compat.v1.while_loop(lambda i, _: i < 20, body, [tf.constant(0), tf.constant(0.0)])
        return float(session.run(total))


@on_worlds(2)
def test_variables_in_place(world: Workers) -> None:
    assert world.run(_variables) == [[1.0, 3.0, 1.0, 3.0]] * 2


def _variables() -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    start = [1.0, 3.0] if hvd.rank() == 0 else [5.0, 7.0]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(f"v{i}", initializer=value) for i, value in enumerate(start)]
        update = hvd.broadcast_(variables, 0)
        session.run(tf.compat.v1.global_variables_initializer())
        updated = session.run(update)
        return [float(value) for value in [*updated, *session.run(variables)]]


@on_worlds(1)
def test_kinds_of_variables_are_not_mixed(world: Workers) -> None:
    assert_raised(world.run(_mixed), "ValueError", "not both at once")


def _mixed() -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    with tf.Graph().as_default():
        make = tf.compat.v1.get_variable
        variables = [make(name, initializer=1.0, use_resource=name == "new") for name in ("old", "new")]
        assert len(hvd.broadcast_(variables[:1], 0)) == 1
        return error_of(hvd.broadcast_, variables, 0)
