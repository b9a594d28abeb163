"""``DistributedOptimizer`` for the optimizers of TensorFlow 1, in graphs and eagerly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds

pytestmark = pytest.mark.timeout(300)


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("optimizer", ["GradientDescentOptimizer", "AdagradOptimizer", "AdamOptimizer"])
def test_like_one_rank_on_the_whole_batch(world: Workers, optimizer: str) -> None:
    world.run(_graph, optimizer)


def _graph(name: str) -> None:
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd

    v1 = tf.compat.v1
    random = np.random.default_rng(0)
    data, target = random.normal(size=(4, 12, 3)), random.normal(size=(4, 12, 2))

    def trained(distributed: bool, rows: slice) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            x, y = v1.placeholder(tf.float64, [None, 3]), v1.placeholder(tf.float64, [None, 2])
            weight = v1.get_variable("w", initializer=np.ones((3, 2)))
            offset = v1.get_variable("b", initializer=np.zeros(2))
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ weight) + offset - y))
            made = getattr(v1.train, name)(0.1)
            if distributed:
                made = hvd.DistributedOptimizer(made)
                assert made.get_name() == f"Distributed{name}"
            step = v1.train.get_or_create_global_step()
            train = made.minimize(loss, global_step=step)
            session.run(v1.global_variables_initializer())
            for number in range(4):
                session.run(train, {x: data[number, rows], y: target[number, rows]})
            assert session.run(step) == 4
            assert distributed is False or made.get_slot_names() == made._optimizer.get_slot_names()
            assert len(made.variables()) == len(getattr(made, "_optimizer", made).variables())
            return session.run([weight, offset])

    share = 12 // hvd.size()
    together = trained(True, slice(hvd.rank() * share, (hvd.rank() + 1) * share))
    for one, other in zip(together, trained(False, slice(None)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@on_worlds(2)
@pytest.mark.parametrize("average", [False, True])
def test_several_passes_per_step(world: Workers, average: bool) -> None:
    world.run(_passes, average)


def _passes(average: bool) -> None:
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float64, [])
        weight = v1.get_variable("w", initializer=np.float64(0.0))
        own = v1.get_variable("local", initializer=np.float64(0.0))
        made = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=3,
            average_aggregated_gradients=average,
        )
        made.register_local_var(own)
        step = v1.train.get_or_create_global_step()
        train = made.minimize(x * weight + x * own, global_step=step)
        session.run(v1.global_variables_initializer())
        values, counts = [], []
        for number in range(6):
            session.run(train, {x: float(number + hvd.rank())})
            values.append(session.run([weight, own]))
            counts.append(session.run([step, made._agg_helper.counter]))
    shift, half = (hvd.size() - 1) / 2, hvd.size()
    parts = 3 if average else 1
    first, second = (0 + 1 + 2) / parts, (3 + 4 + 5) / parts
    expected = [0.0, 0.0, -first - 3 * shift / parts] * 2
    expected[3] = expected[4] = expected[2]
    expected[5] = expected[2] - second - 3 * shift / parts
    np.testing.assert_allclose([value for value, _ in values], expected)
    np.testing.assert_allclose(values[2][1], -(first + 3 * hvd.rank() / parts) / half)
    assert counts == [[1, 1], [2, 2], [3, 0], [4, 1], [5, 2], [6, 0]]


@on_worlds(2)
def test_infinities_do_not_linger(world: Workers) -> None:
    world.run(_infinities)


def _infinities() -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.tensorflow._gradients import Rules, _make_allreduce_grads_fn

    rules = Rules()
    helper = hvd.LocalGradientAggregationHelper(2, _make_allreduce_grads_fn("aggregated", rules), rules)
    variable = tf.Variable(0.0)

    @tf.function
    def step(gradient: Any) -> Any:
        (found,) = helper.compute_gradients([gradient], [variable])
        helper.apply_gradients(lambda: variable.assign_add(found), None)
        return found

    for gradient in [float("inf"), 1.0]:
        step(tf.constant(gradient))
    assert float(variable) == float("inf")
    variable.assign(0.0)
    for gradient in [1.0, 2.0]:
        step(tf.constant(gradient))
    assert float(variable) == 3.0


@on_worlds(2)
@pytest.mark.parametrize("passes", [1, 2])
def test_adasum_combines_steps(world: Workers, passes: int) -> None:
    world.run(_adasum, passes)


def _adasum(passes: int) -> None:
    """Steps at right angles add up; equal ones are one."""
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        gradient = v1.placeholder(tf.float64, [2])
        weight = v1.get_variable("w", initializer=np.zeros(2))
        made = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=passes
        )
        assert made.get_name() == "DistributedDeltaGradientDescentOptimizer"
        train = made.minimize(tf.reduce_sum(gradient * weight))
        session.run(v1.global_variables_initializer())
        right = [1.0, 0.0] if hvd.rank() == 0 else [0.0, 1.0]
        for _ in range(passes):
            session.run(train, {gradient: right})
        np.testing.assert_allclose(session.run(weight), [-passes, -passes])
        for _ in range(passes):
            session.run(train, {gradient: [1.0, 2.0]})
        np.testing.assert_allclose(session.run(weight), [-2 * passes, -3 * passes])
        assert "delta_start" in made.get_slot_names()


@on_worlds(2)
def test_eagerly(world: Workers) -> None:
    world.run(_eagerly)


def _eagerly() -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    v1 = tf.compat.v1
    weight = tf.Variable(0.0)
    made = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    made.minimize(lambda: weight * float(hvd.rank()), var_list=[weight])
    assert float(weight) == -(hvd.size() - 1) / 2


@on_worlds(2)
@pytest.mark.parametrize(
    ("optimizer", "options", "kind", "words"),
    [
        ("v1", {"op": 2, "average_aggregated_gradients": True}, "ValueError", "Adasum does not support"),
        ("keras", {"op": 2}, "ValueError", "not supported with Keras optimizers"),
        ("v1", {"backward_passes_per_step": 2}, "ValueError", "eager"),
        ("v1", {"backward_passes_per_step": 0}, "ValueError", "must be > 0"),
        ("v1", {"op": 1, "gradient_predivide_factor": 2.0}, "ValueError", "gradient_predivide_factor"),
        ("adam", {}, "ValueError", "wraps a Keras optimizer, not builtins.str"),
        ("tape", {}, "ValueError", "use horovod.tensorflow.DistributedGradientTape"),
    ],
)
def test_misuse(world: Workers, optimizer: str, options: dict[str, Any], kind: str, words: str) -> None:
    for name, message in world.run(_misuse, optimizer, options):
        assert name == kind
        assert words in message


def _misuse(optimizer: str, options: dict[str, Any]) -> tuple[str, str]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    made: Any = optimizer
    if optimizer == "v1":
        made = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    elif optimizer == "keras":
        made = tf.keras.optimizers.SGD()
    elif optimizer == "tape":
        made = tf.GradientTape()
    try:
        hvd.DistributedOptimizer(made, **options)
    except (ValueError, TypeError) as error:
        return type(error).__name__, str(error)
    raise AssertionError("nothing was raised")
