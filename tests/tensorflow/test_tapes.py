"""``DistributedGradientTape``: its gradients are those of the whole batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.outcomes import assert_raised, error_of
from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds

pytestmark = pytest.mark.timeout(300)
MODES = ["eager", "function"]


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_like_one_rank_on_the_whole_batch(world: Workers, mode: str) -> None:
    world.run(_trains, mode, {}, {})


@on_worlds(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [{"num_groups": 2}, {"groups": 3}, {"gradient_predivide_factor": 4.0}, {"sparse_as_dense": True}],
    ids=str,
)
def test_options_that_change_nothing(world: Workers, mode: str, options: dict[str, Any]) -> None:
    world.run(_trains, mode, options, {})


@on_worlds(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(world: Workers, mode: str, compression: str) -> None:
    world.run(_trains, mode, {"compression": compression}, {"rtol": 0.05, "atol": 0.01})


def _trains(mode: str, options: dict[str, Any], tolerance: dict[str, float]) -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    options = dict(options)
    if "compression" in options:
        options["compression"] = getattr(hvd.Compression, options["compression"])
    model, alone = training.variables(), training.variables()

    def step(data: Any, target: Any) -> None:
        with tf.GradientTape() as tape:
            loss = training.loss_of(model, data, target)
        gradients = hvd.DistributedGradientTape(tape, **options).gradient(loss, model)
        for variable, gradient in zip(model, gradients, strict=True):
            variable.assign_sub(0.5 * gradient)

    run = training.maybe_function(step, mode)
    for number in range(4):
        data, target = training.batch(number)
        run(training.own(data), training.own(target))
        gradients = training.plain_gradients(alone, data, target)
        for variable, gradient in zip(alone, gradients, strict=True):
            variable.assign_sub(0.5 * gradient)
    training.assert_close(model, alone, **tolerance)
    training.assert_same_everywhere(model)


@on_worlds(2)
@pytest.mark.parametrize("mode", MODES)
def test_groups_of_variables(world: Workers, mode: str) -> None:
    world.run(_groups, mode)


def _groups(mode: str) -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    model = training.variables()
    data, target = training.batch(0)

    def gradients(data: Any, target: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = training.loss_of(model, data, target)
        tape = hvd.DistributedGradientTape(tape, groups=[[model[3], model[0]], [model[1]]])
        return tape.gradient(loss, model)

    found = training.maybe_function(gradients, mode)(training.own(data), training.own(target))
    training.assert_close(found, training.plain_gradients(model, data, target))


@on_worlds(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scaled", [True, False])
def test_local_sources(world: Workers, mode: str, scaled: bool) -> None:
    world.run(_local, mode, scaled)


def _local(mode: str, scaled: bool) -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    here, shared = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    mine = float(hvd.rank() + 1)

    def gradients() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(here * mine + shared * mine)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scaled)
        tape.register_local_source(here)
        both = tape.get_local_and_global_gradients(loss, [here, shared])
        return tape.gradient(loss, [here, shared]), [[grad for _, grad in some] for some in both]

    together, (local, common) = training.maybe_function(gradients, mode)()
    own, mean = [mine / hvd.size() if scaled else mine] * 2, [(hvd.size() + 1) / 2] * 2
    training.assert_close(together, [own, mean])
    training.assert_close(local, [own])
    training.assert_close(common, [mean])


@on_worlds(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dense", [True, False], ids=["as dense", "gathered"])
def test_sparse_gradients(world: Workers, mode: str, dense: bool) -> None:
    world.run(_sparse, mode, dense)


def _sparse(mode: str, dense: bool) -> None:
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    table = tf.Variable(tf.zeros([4, 3], tf.float64))
    local = tf.Variable(tf.zeros([4, 3], tf.float64))

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [0, hvd.rank() + 1]) + tf.gather(local, [0, 1])
            loss = tf.reduce_sum(rows)
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=dense)
        tape.register_local_source(local)
        found = tape.gradient(loss, [table, local])
        assert isinstance(found[0], tf.IndexedSlices) != dense
        assert isinstance(found[1], tf.IndexedSlices)
        return [tf.convert_to_tensor(gradient) for gradient in found]

    expected = np.zeros((4, 3))
    expected[0] = 1.0
    expected[1 : hvd.size() + 1] += 1.0 / hvd.size()
    own = np.zeros((4, 3))
    own[:2] = 1.0 / hvd.size()
    training.assert_close(training.maybe_function(gradients, mode)(), [expected, own])


@on_worlds(2)
@pytest.mark.parametrize("mode", MODES)
def test_forms_of_sources(world: Workers, mode: str) -> None:
    world.run(_forms, mode)


def _forms(mode: str) -> None:
    """One source, a structure, one that has no gradient, another tape in the same graph."""
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    a, b, c = (tf.Variable(float(number)) for number in range(3))
    mine = float(hvd.rank())

    def gradients() -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            loss = a * mine + b * 2.0 * mine
        with tf.GradientTape() as second:
            other = a * 10.0 * mine
        one = tape.gradient(loss, a)
        pair = tape.gradient(loss, {"b": b, "c": [c]})
        assert pair["c"] == [None]
        zero = tape.gradient(loss, [c], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        generic = tape.gradient(loss, [a, b], use_generic_names=True)
        return one, pair["b"], zero[0], *generic, hvd.DistributedGradientTape(second).gradient(other, a)

    mean = (hvd.size() - 1) / 2
    found = training.maybe_function(gradients, mode)()
    training.assert_close(found, [mean, 2 * mean, 0.0, mean, 2 * mean, 10 * mean])


@on_worlds(3)
def test_process_sets(world: Workers) -> None:
    world.run(_process_sets)


def _process_sets() -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    some = hvd.add_process_set([0, 2])
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = variable * [1.0, 7.0, 3.0][hvd.rank()]
    gradient = hvd.DistributedGradientTape(tape, process_set=some).gradient(loss, variable)
    assert float(gradient) == (7.0 if hvd.rank() == 1 else 2.0)
    hvd.remove_process_set(some)


@on_worlds(2)
def test_sum_and_adasum(world: Workers) -> None:
    world.run(_sum_and_adasum)


def _sum_and_adasum() -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.tensorflow import training

    variable = tf.Variable([1.0, 1.0])
    mine = tf.constant([1.0, 0.0] if hvd.rank() == 0 else [0.0, 1.0])
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(variable * mine)
    total = hvd.DistributedGradientTape(tape, op=hvd.Sum)
    training.assert_close([total.gradient(loss, variable)], [[1.0, 1.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * mine)
    training.assert_close(
        [hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, variable)], [[1.0, 1.0]]
    )


@on_worlds(2)
def test_layers_of_ones_own(world: Workers) -> None:
    world.run(_partial)


def _partial() -> None:
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd

    layer, other = tf.keras.layers.Dense(1, use_bias=False), tf.keras.layers.Dense(1, use_bias=False)
    unbuilt = tf.keras.layers.Dense(1)
    for one in (layer, other):
        one.build((None, 1))
    x = tf.constant([[float(hvd.rank() + 1)]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x) + other(x))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer)
    own, mean = tape.gradient(loss, [layer.kernel, other.kernel])
    np.testing.assert_allclose([float(own[0, 0]), float(mean[0, 0])], [(hvd.rank() + 1) / 2, 1.5])
    error = error_of(hvd.PartialDistributedGradientTape, tf.GradientTape(), local_layers=[unbuilt])
    assert_raised([error], "ValueError", "build the model first")


@on_worlds(2)
@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"gradient_predivide_factor": 2.0, "op": 1}, "ValueError", "gradient_predivide_factor"),
        ({"gradient_predivide_factor": 0.0}, "ValueError", "other than 0"),
        ({"op": 4}, "ValueError", "hvd.Average, hvd.Sum or hvd.Adasum"),
        ({"groups": -1}, "ValueError", "positive number"),
        ({"groups": [[3]]}, "ValueError", "variables only"),
        ({"process_set": "unregistered"}, "TypeError", "is not registered"),
        ({"tape": "no tape"}, "ValueError", "wraps a tf.GradientTape, not str"),
        ({"tape": "twice"}, "ValueError", "distributed already"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_misuse(world: Workers, options: dict[str, Any], kind: str, words: str) -> None:
    for name, message in world.run(_misuse, options):
        assert name == kind
        assert words in message


def _misuse(options: dict[str, Any]) -> tuple[str, str]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    options = dict(options)
    tape: Any = options.pop("tape", None) or tf.GradientTape()
    if tape == "twice":
        tape = hvd.DistributedGradientTape(tf.GradientTape())
    if options.get("process_set") == "unregistered":
        options["process_set"] = hvd.ProcessSet([0])
    try:
        hvd.DistributedGradientTape(tape, **options)
    except (ValueError, TypeError) as error:
        return type(error).__name__, str(error)
    raise AssertionError("nothing was raised")
