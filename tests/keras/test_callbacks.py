"""The callbacks, by the formulas of the original, on every Keras."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.marks import SLOW, on_keras
from tests.support.outcomes import assert_raised, error_of
from tests.support.world import Workers

pytestmark = SLOW


@on_keras(2)
def test_broadcast_after_the_first_batch(world: Workers) -> None:
    world.run(_broadcast)


def _broadcast() -> None:
    """Whatever the weights were: from the second batch on all workers have those of the first."""
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = training.model(seed=hvd.rank())
    made.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * (hvd.rank() + 1))), loss="mse"
    )
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    x, y = (training.own(array) for array in training.data())
    training.fit(made, (x, y), training.ROWS // hvd.size(), callbacks=[callback])
    assert callback.broadcast_done
    training.assert_same_everywhere(made)
    assert round(_rate(made.optimizer), 6) == 0.01


def _rate(optimizer: Any) -> float:
    from horovod._keras.state import number

    return number(optimizer.learning_rate)


@on_keras(2)
def test_variables_of_ones_own_are_not_broadcast(world: Workers) -> None:
    world.run(_local)


def _local() -> None:
    import numpy as np

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = training.model(seed=hvd.rank())
    before = made.get_weights()
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[made.weights[0]])
    callback.register_local_var(made.weights[1])
    x, y = (training.own(array) for array in training.data())
    training.fit(made, (x, y), training.ROWS // hvd.size(), callbacks=[callback])
    np.testing.assert_array_equal(made.get_weights()[0], before[0])
    np.testing.assert_array_equal(made.get_weights()[1], before[1])
    np.testing.assert_array_equal(made.get_weights()[2], training.model(seed=0).get_weights()[2])


@on_keras(2)
def test_metrics_are_averages(world: Workers) -> None:
    world.run(_metrics)


def _metrics() -> None:
    import numpy as np

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = training.model()
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse", metrics=["mae"])
    x, y = training.data()
    seen = {}
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda _epoch, logs: seen.update(logs))
    history = training.fit(
        made,
        (training.own(x), training.own(y)),
        training.ROWS // hvd.size(),
        callbacks=[hvd.callbacks.MetricAverageCallback(), note],
        validation_data=(training.own(x), training.own(y)),
    )
    error = made.predict(x, verbose=0) - y
    expected = {"loss": np.square(error).mean(), "mae": np.abs(error).mean()}
    for name, value in expected.items():
        np.testing.assert_allclose(seen[name], value, rtol=1e-5)
        np.testing.assert_allclose(history.history[f"val_{name}"], [value], rtol=1e-5)


@on_keras(2)
def test_metrics_of_several_numbers(world: Workers) -> None:
    assert world.run(_per_class) == [[0.5, 1.5, 2.5]] * 2


def _per_class() -> list[float]:
    import numpy as np

    from tests.keras import training

    rank = training.hvd.rank()
    logs = {"f1": np.arange(3, dtype=np.float32) + rank, "loss": float(rank)}
    training.hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs["loss"] == 0.5
    return list(logs["f1"])


@on_keras(2, kinds=("tensorflow",))
def test_a_metric_that_is_no_number(world: Workers) -> None:
    for message in world.run(_no_number):
        assert message.startswith("MetricAverageCallback: the metric 'note' is 'text', not a number")


def _no_number() -> str:
    from tests.keras import training

    callback = training.hvd.callbacks.MetricAverageCallback()
    try:
        callback.on_epoch_end(0, {"note": "text"})
    except TypeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


@on_keras(2)
def test_bfloat16_is_broadcast_as_it_is(world: Workers) -> None:
    world.run(_bfloat16)


def _bfloat16() -> None:
    import numpy as np

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(4, dtype="bfloat16")])
    made.set_weights([np.full(weight.shape, 1.5 + hvd.rank()) for weight in made.get_weights()])
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
    training.fit(made, training.data(1), training.ROWS, callbacks=[callback])
    for weight in made.weights:
        np.testing.assert_array_equal(_plain(weight), 2.5)


def _plain(weight: Any) -> Any:
    from tests.keras import training

    return (
        training.keras.ops.convert_to_numpy(training.keras.ops.cast(weight, "float32"))
        if (training.KIND != "tf_keras")
        else weight.numpy().astype("float32")
    )


@on_keras(2, kinds=("tensorflow",))
def test_different_metrics_are_an_error(world: Workers) -> None:
    for message in world.run(_different_metrics):
        assert (
            "MetricAverageCallback: the ranks have different metrics: rank 0 loss; rank 1 loss, mae"
            in message
        )


def _different_metrics() -> str:
    from tests.keras import training

    callback = training.hvd.callbacks.MetricAverageCallback()
    logs = {"loss": 1.0, "mae": 2.0} if training.hvd.rank() else {"loss": 1.0}
    try:
        callback.on_epoch_end(0, logs)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


@on_keras(2)
def test_warmup(world: Workers) -> None:
    said = "Epoch 2: finished gradual learning rate warmup to 0.4."
    assert [text.count(said) for text in world.run(_warmup)] == [1, 0]


def _warmup() -> str:
    """What was printed."""
    import contextlib
    import io

    import numpy as np

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = training.model()
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.4)), loss="mse")
    rates: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_, **__: rates.append(_rate(made.optimizer)),
        on_batch_begin=lambda *_, **__: rates.append(_rate(made.optimizer)),
    )
    warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.4, warmup_epochs=2, verbose=1)
    x, y = (training.own(array) for array in training.data())
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history = training.fit(made, (x, y), 6, callbacks=[warmup, note], epochs=3)
    size, steps = hvd.size(), training.STEPS
    expected = [
        0.4 / size * ((epoch + (batch + 1) / steps) * (size - 1) / 2 + 1)
        for epoch in range(2)
        for batch in range(steps)
    ] + [0.4] * steps
    found = rates if len(rates) == len(expected) else rates[::2]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], [expected[steps - 1], 0.4, 0.4], rtol=1e-5)
    return printed.getvalue()


@on_keras(1, kinds=("tensorflow", "tf_keras"))
@pytest.mark.parametrize("staircase", [True, False])
def test_schedule(world: Workers, staircase: bool) -> None:
    world.run(_schedule, staircase)


def _schedule(staircase: bool) -> None:
    import numpy as np

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = training.model()
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), loss="mse")
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        1.0, 0.5, start_epoch=1, end_epoch=3, staircase=staircase
    )
    history = training.fit(made, training.data(), training.ROWS, callbacks=[schedule], epochs=4)
    last = (training.STEPS - 1) / training.STEPS if not staircase else 0.0
    expected = [1.0, 0.5**last, 0.5 ** (1 + last), 0.5 ** (1 + last)]
    np.testing.assert_allclose(history.history["lr"], expected, rtol=1e-5)


@on_keras(1, kinds=("torch",))
def test_momentum_is_corrected_for_one_batch(world: Workers) -> None:
    """Where the momentum is a number that is read in every step."""
    world.run(_momentum)


def _momentum() -> None:
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = training.model()
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.8)), loss="mse")
    seen: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_, **__: seen.append(float(made.optimizer.momentum))
    )
    schedule = hvd.callbacks.LearningRateScheduleCallback(1.0, lambda _epoch: 0.5)
    x, y = training.data(2)
    training.fit(made, (x, y), training.ROWS, callbacks=[schedule, note])
    assert seen == [0.4, 0.8]
    assert made.optimizer.momentum == 0.8


@on_keras(1, kinds=("tensorflow", "tf_keras"))
@pytest.mark.parametrize("eager", [False, True])
def test_momentum_that_is_compiled_is_left_alone(world: Workers, eager: bool) -> None:
    world.run(_compiled_momentum, eager)


def _compiled_momentum(eager: bool) -> None:
    """By the weights: as a constant of a compiled step, a correction would last for ever."""
    from tests.keras import training

    def trained(correct: bool) -> Any:
        hvd, keras = training.hvd, training.keras
        made = training.model()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.8))
        made.compile(optimizer=optimizer, loss="mse", run_eagerly=eager)
        schedule = hvd.callbacks.LearningRateScheduleCallback(
            0.1, lambda epoch: 0.5 + epoch, momentum_correction=correct
        )
        training.fit(made, training.data(), training.ROWS, epochs=2, callbacks=[schedule])
        return made.get_weights()

    pairs = zip(trained(True), trained(False), strict=True)
    assert all((one == other).all() for one, other in pairs) is not eager


@on_keras(2, kinds=("tensorflow", "tf_keras"))
def test_advice(world: Workers) -> None:
    for plain, order in world.run(_advice):
        assert any("SGD) is not distributed" in message for message in plain)
        assert any("EarlyStopping before MetricAverageCallback" in message for message in order)


def _advice() -> tuple[list[str], list[str]]:
    import warnings

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    x, y = (training.own(array) for array in training.data(1))
    made = training.model()
    made.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    with warnings.catch_warnings(record=True) as plain:
        warnings.simplefilter("always")
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        training.fit(made, (x, y), 6, callbacks=[callback])
    made = training.model()
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    callbacks = [keras.callbacks.EarlyStopping("loss"), hvd.callbacks.MetricAverageCallback()]
    with warnings.catch_warnings(record=True) as order:
        warnings.simplefilter("always")
        training.fit(made, (x, y), 6, callbacks=callbacks)
    return [str(one.message) for one in plain], [str(one.message) for one in order]


@on_keras(1, kinds=("tensorflow", "tf_keras"))
@pytest.mark.parametrize("weights", [False, True])
def test_best_model_checkpoint(world: Workers, weights: bool, tmp_path: Any) -> None:
    world.run(_best, weights, str(tmp_path))


def _best(weights: bool, directory: str) -> None:
    import os

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = training.model()
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss", save_weights_only=weights)
    assert callback.filepath is None
    callback.filepath = f"{directory}/best.weights.h5" if weights else f"{directory}/best.keras"
    training.fit(made, training.data(), training.ROWS, callbacks=[callback])
    assert os.path.getsize(callback.filepath) > 1000
    if training.KIND != "tf_keras":
        assert hvd.callbacks.BestModelCheckpoint("acc", 0, "max").monitor_op is not callback.monitor_op


@on_keras(1, kinds=("tensorflow",))
def test_misuse(world: Workers) -> None:
    world.run(_misuse)


def _misuse() -> None:
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = training.model()
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    made.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), loss="mse")
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1)
    error = error_of(training.fit, made, training.data(), training.ROWS, callbacks=[warmup])
    assert_raised([error], "ValueError", "learning rate schedule (ExponentialDecay)")
    error = error_of(hvd.callbacks.LearningRateScheduleCallback, None, 0.1)
    assert_raised([error], "ValueError", "initial_lr")
