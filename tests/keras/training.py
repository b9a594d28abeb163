"""A small model, its data, and the oracle: plain Keras on whole batches. Runs in the workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
    import tf_keras as keras

    import horovod.tensorflow.keras as hvd

    KIND = "tf_keras"
else:
    import keras

    import horovod.keras as hvd

    KIND = keras.backend.backend()

ROWS = 12
"""Of a batch: as many for each of 1, 2 and 3 workers."""
STEPS = 5
CLOSE = {"rtol": 1e-9, "atol": 1e-9} if KIND != "torch" else {"rtol": 1e-6, "atol": 5e-8}
"""Equal but for the order of additions, in double precision; on torch Keras computes partly in single."""

MAKERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.05),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.01),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
    "weight_decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
}


def model(seed: int = 0) -> Any:
    """Two layers, the same whenever it is made. In double precision rounding is no concern."""
    made = keras.Sequential(
        [
            keras.layers.Input((6,), dtype="float64"),
            keras.layers.Dense(16, activation="tanh", dtype="float64"),
            keras.layers.Dense(4, dtype="float64"),
        ]
    )
    random = np.random.default_rng(seed)
    made.set_weights([random.normal(size=weight.shape) * 0.3 for weight in made.get_weights()])
    return made


def loss() -> Any:
    """Keras 3 computes it in single precision: a half of a batch is exact then, a third is not."""
    in_double = KIND != "tf_keras" and hvd.size() == 3
    return keras.losses.MeanSquaredError(**({"dtype": "float64"} if in_double else {}))


def data(steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of some steps, of all workers together."""
    random = np.random.default_rng(1)
    return random.normal(size=(steps * ROWS, 6)), random.normal(size=(steps * ROWS, 4))


def own(array: np.ndarray) -> np.ndarray:
    """This worker's rows of every batch."""
    share = ROWS // hvd.size()
    batches = array.reshape(-1, ROWS, array.shape[1])
    mine = batches[:, hvd.rank() * share : (hvd.rank() + 1) * share]
    return mine.reshape(-1, array.shape[1])


def fit(trained: Any, arrays: tuple[np.ndarray, np.ndarray], batch: int, **options: Any) -> Any:
    """The arrays in their order."""
    return trained.fit(*arrays, batch_size=batch, shuffle=False, verbose=0, **options)


def fit_alone(make: Callable[[], Any], epochs: int = 1, **compiling: Any) -> Any:
    """The oracle: plain Keras on whole batches."""
    alone = model()
    alone.compile(optimizer=make(), loss=loss(), **compiling)
    fit(alone, data(), ROWS, epochs=epochs)
    return alone


def fit_together(
    make: Callable[[], Any], callbacks: Any = (), epochs: int = 1, options: Any = None, **compiling: Any
) -> Any:
    """The same with this worker's parts of the batches."""
    together = model()
    optimizer = hvd.DistributedOptimizer(make(), **(options or {}))
    together.compile(optimizer=optimizer, loss=loss(), **compiling)
    arrays = tuple(own(array) for array in data())
    fit(together, arrays, ROWS // hvd.size(), callbacks=list(callbacks), epochs=epochs)
    return together


def assert_same(trained: Any, expected: Any, **tolerance: float) -> None:
    """Close to the oracle."""
    for one, other in zip(trained.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, **(tolerance or CLOSE))


def assert_same_everywhere(trained: Any) -> None:
    """The same bits on all workers."""
    from horovod._core.objects import allgather_object

    everybody = allgather_object([weight.tobytes() for weight in trained.get_weights()])
    assert all(weights == everybody[0] for weights in everybody)


def assert_learnt(trained: Any) -> None:
    """It is not what it was."""
    assert any(
        not np.allclose(one, other)
        for one, other in zip(trained.get_weights(), model().get_weights(), strict=True)
    )
