"""What a distributed Keras optimizer is: its class, its state, its place in saved models."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.marks import SLOW, on_keras
from tests.support.outcomes import assert_raised, error_of
from tests.support.world import Workers

pytestmark = SLOW


@on_keras(1)
def test_the_class(world: Workers) -> None:
    world.run(_class)


def _class() -> None:
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    plain = keras.optimizers.Adam(0.02, clipnorm=1.0)
    made = hvd.DistributedOptimizer(plain)
    assert isinstance(made, keras.optimizers.Adam)
    assert type(made).__module__ == "horovod._keras"
    assert type(made).__name__ == "Adam"
    config = {**plain.get_config(), "name": "DistributedAdam"}
    assert made.get_config() == config
    made.build(training.model().trainable_variables)
    assert len(made.variables()) == len(made.variables) > 4
    assert hvd.DistributedOptimizer(keras.optimizers.SGD(), name="mine").name == "mine"


@on_keras(1)
def test_state_is_kept(world: Workers) -> None:
    world.run(_state)


def _state() -> None:
    """Wrapping in the middle of a training changes nothing."""
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    alone = training.fit_alone(training.MAKERS["adam"], epochs=2)
    made = training.fit_alone(training.MAKERS["adam"])
    made.compile(optimizer=hvd.DistributedOptimizer(made.optimizer), loss=training.loss())
    training.fit(made, training.data(), training.ROWS)
    training.assert_same(made, alone)
    assert isinstance(made.optimizer, keras.optimizers.Adam)


@on_keras(2)
@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_saving_and_loading(world: Workers, suffix: str, tmp_path: Any) -> None:
    world.run(_saving, f"{tmp_path}/model.{suffix}")


def _saving(path: str) -> None:
    """Half a training, saved and loaded, and the other half: like a whole one."""
    import json
    import zipfile

    from horovod._core.objects import broadcast_object
    from horovod._keras import is_distributed
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    half = training.fit_together(training.MAKERS["adam"])
    if hvd.rank() == 0:
        half.save(path)
        if path.endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                config = json.loads(archive.read("config.json"))
            assert "horovod" not in json.dumps(config)
    broadcast_object(None)
    plain = keras.models.load_model(path)
    assert not is_distributed(plain.optimizer)
    loaded = hvd.load_model(path)
    assert is_distributed(loaded.optimizer)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    x, y = (training.own(array) for array in training.data())
    training.fit(loaded, (x, y), training.ROWS // hvd.size())
    tolerance = {} if path.endswith(".keras") else {"rtol": 1e-5, "atol": 1e-6}
    training.assert_same(loaded, training.fit_alone(training.MAKERS["adam"], epochs=2), **tolerance)
    training.assert_same_everywhere(loaded)


@on_keras(2, kinds=("tensorflow", "torch"))
def test_optimizers_of_ones_own(world: Workers, tmp_path: Any) -> None:
    world.run(_own_optimizer, f"{tmp_path}/model.keras")


def _own_optimizer(path: str) -> None:
    from horovod._core.objects import broadcast_object
    from horovod._keras import is_distributed
    from tests.keras import training

    hvd, keras = training.hvd, training.keras

    class Mine(keras.optimizers.SGD):  # type: ignore[misc,name-defined]
        pass

    together = training.fit_together(lambda: Mine(0.1))
    if hvd.rank() == 0:
        together.save(path)
    broadcast_object(None)
    loaded = hvd.load_model(path, custom_optimizers=[Mine])
    assert isinstance(loaded.optimizer, Mine)
    assert is_distributed(loaded.optimizer)
    training.assert_same(together, training.fit_alone(lambda: Mine(0.1)))


@on_keras(2)
@pytest.mark.parametrize("how", ["explicit", "policy"])
def test_loss_scaling(world: Workers, how: str) -> None:
    world.run(_loss_scaling, how)


def _loss_scaling(how: str) -> None:
    """An overflow on one worker makes all of them skip the step; none waits for the others."""
    import numpy as np

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    if how == "policy":
        keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        made = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(4)])
        made.set_weights([np.full((6, 4), 0.1), np.zeros(4)])
        optimizer = keras.optimizers.SGD(0.01)
        if how == "explicit":
            scaling = (
                keras.mixed_precision.LossScaleOptimizer
                if training.KIND == "tf_keras"
                else keras.optimizers.LossScaleOptimizer
            )
            optimizer = scaling(optimizer, initial_scale=2.0)
        made.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse")
    finally:
        keras.mixed_precision.set_global_policy("float32")
    x, y = (training.own(array).astype("float32") for array in training.data(3))
    bad = x.copy()
    if hvd.rank() == 1:
        bad[0] = np.inf
    before = made.get_weights()
    training.fit(made, (bad[:6], y[:6]), 6)
    for one, other in zip(made.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    training.fit(made, (x, y), 6)
    assert not np.allclose(made.get_weights()[0], before[0])
    training.assert_same_everywhere(made)


@on_keras(1, kinds=("tensorflow", "torch"))
def test_loss_scaling_the_wrong_way_round(world: Workers) -> None:
    world.run(_wrong_way)


def _wrong_way() -> None:
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    made = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    made.loss_scale_factor = None  # anybody may
    error = error_of(keras.optimizers.LossScaleOptimizer, made)
    advice = "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
    assert_raised([error], "ValueError", advice)


@on_keras(2)
@pytest.mark.parametrize("scaled", [True, False])
def test_local_variables(world: Workers, scaled: bool) -> None:
    world.run(_local_variables, scaled)


def _local_variables(scaled: bool) -> None:
    import numpy as np

    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    make = hvd.PartialDistributedOptimizer if hasattr(hvd, "PartialDistributedOptimizer") else None
    assert make is not None
    made = training.model()
    options = {"local_layers": made.layers[-1], "scale_local_gradients": scaled}
    made.compile(optimizer=make(keras.optimizers.SGD(0.1), **options), loss="mse")
    x, y = (training.own(array) for array in training.data(1))
    training.fit(made, (x, y), training.ROWS // hvd.size())
    alone, local = training.model(), training.model()
    alone.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    training.fit(alone, training.data(1), training.ROWS)
    local.compile(optimizer=keras.optimizers.SGD(0.1 / hvd.size() if scaled else 0.1), loss="mse")
    training.fit(local, (x, y), training.ROWS // hvd.size())
    expected = alone.get_weights()[:2] + local.get_weights()[2:]
    for one, other in zip(made.get_weights(), expected, strict=True):
        np.testing.assert_allclose(one, other, **training.CLOSE)


@on_keras(2)
def test_values(world: Workers) -> None:
    world.run(_values)


def _values() -> None:
    import numpy as np

    from horovod._keras.state import to_numpy
    from tests.keras import training

    hvd = training.hvd
    mine = np.array([1.0, 2.0]) * (hvd.rank() + 1)
    mean = (hvd.size() + 1) / 2
    np.testing.assert_allclose(to_numpy(hvd.allreduce(mine)), [mean, 2 * mean])
    np.testing.assert_allclose(to_numpy(hvd.allreduce(mine, op=hvd.Sum)), [2 * mean, 4 * mean])
    np.testing.assert_allclose(to_numpy(hvd.allgather(mine)), [1.0, 2.0, 2.0, 4.0])
    np.testing.assert_allclose(to_numpy(hvd.broadcast(mine, 1)), [2.0, 4.0])
    np.testing.assert_allclose(to_numpy(hvd.reducescatter(mine)), [mean * (hvd.rank() + 1)])
    assert float(hvd.allreduce(3, name="number")) == 3.0


@on_keras(1)
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("twice", "distributed already"),
        ("class", "not a class"),
        ("adasum", "op=hvd.Average or op=hvd.Sum"),
        ("predivide", "gradient_predivide_factor"),
        ("passes", "must be > 0"),
        ("name", "keras.optimizers.get('adam')"),
        ("groups", "twice"),
        ("layers", "tf.keras.layers.Layer"),
        ("unbuilt", "build the model first"),
    ],
)
def test_misuse(world: Workers, case: str, words: str) -> None:
    (message,) = world.run(_misuse, case)
    assert words in message


def _misuse(case: str) -> str:
    from tests.keras import training

    hvd, keras = training.hvd, training.keras
    sgd = keras.optimizers.SGD
    weight = training.model().weights[0]
    cases = {
        "twice": lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd())),
        "class": lambda: hvd.DistributedOptimizer(sgd),
        "adasum": lambda: hvd.DistributedOptimizer(sgd(), op=hvd.Adasum),
        "predivide": lambda: hvd.DistributedOptimizer(sgd(), op=hvd.Sum, gradient_predivide_factor=2.0),
        "passes": lambda: hvd.DistributedOptimizer(sgd(), backward_passes_per_step=0),
        "name": lambda: hvd.DistributedOptimizer("adam"),
        "groups": lambda: hvd.DistributedOptimizer(sgd(), groups=[[weight], [weight]]),
        "layers": lambda: hvd.PartialDistributedOptimizer(sgd(), local_layers=["dense"]),
        "unbuilt": lambda: hvd.PartialDistributedOptimizer(sgd(), local_layers=keras.layers.Dense(2)),
    }
    try:
        cases[case]()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was raised")
