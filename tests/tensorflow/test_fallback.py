"""The operations in Python, where TensorFlow lacks what the native kernels need: the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers
from tests.tensorflow.marks import SETTINGS


@pytest.fixture(scope="module")
def world() -> Any:
    """Two processes whose TensorFlow seems to be another one."""
    from tests.support.world import workers

    two = workers(2, settings=dict(SETTINGS))
    said = two.run(_import_without_kernels, deadline=100)
    assert [len(lines) for lines in said] == [1, 1]
    for (line,) in said:
        assert "in Python" in line
        assert "no TF_Anything" in line
    yield two
    two.kill()


def _import_without_kernels() -> list[str]:
    import logging
    import warnings

    from horovod import _native

    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord):
            lines.append(record.getMessage())

    logging.getLogger("horovod").addHandler(Lines())
    _native.add_to_tensorflow = lambda: "no TF_Anything"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow  # noqa: F401
    import horovod.tensorflow as hvd
    from horovod.tensorflow import _kernels

    assert _kernels.route() == "python"
    hvd.init()
    return lines


every_mode = pytest.mark.parametrize("graph", [False, True], ids=["eager", "function"])

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "allreduce": lambda hvd, x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5),
    "grouped_allreduce": lambda hvd, x: hvd.grouped_allreduce([x, 2.0 * x]),
    "allgather": lambda hvd, x: hvd.allgather(x),
    "grouped_allgather": lambda hvd, x: hvd.grouped_allgather([x, 2.0 * x]),
    "broadcast": lambda hvd, x: hvd.broadcast(x, 1),
    "alltoall": lambda hvd, x: list(hvd.alltoall(x, [1, 1])),
    "reducescatter": lambda hvd, x: hvd.reducescatter(x, op=hvd.Sum),
    "grouped_reducescatter": lambda hvd, x: hvd.grouped_reducescatter([x, 2.0 * x]),
    "queries": lambda hvd, x: [hvd.rank_op(), hvd.size_op(), hvd.local_size_op(), hvd.local_rank_op()],  # noqa: ARG005
}

_A, _B = np.array([1.0, 2.0]), np.array([10.0, 20.0])
_BOTH = np.concatenate([_A, _B])
WANTED: dict[str, list[list[Any]]] = {
    "allreduce": [[0.5 * (_A + _B)]] * 2,
    "grouped_allreduce": [[(_A + _B) / 2, _A + _B]] * 2,
    "allgather": [[_BOTH]] * 2,
    "grouped_allgather": [[_BOTH, 2 * _BOTH]] * 2,
    "broadcast": [[_B]] * 2,
    "alltoall": [[np.array([1.0, 10.0]), [1, 1]], [np.array([2.0, 20.0]), [1, 1]]],
    "reducescatter": [[[11.0]], [[22.0]]],
    "grouped_reducescatter": [[[5.5], [11.0]], [[11.0], [22.0]]],
    "queries": [[0, 2, 2, 0], [1, 2, 2, 1]],
}


@every_mode
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results(world: Workers, operation: str, graph: bool) -> None:
    for found, wanted in zip(
        world.run(_results, OPERATIONS[operation], graph), WANTED[operation], strict=True
    ):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other)


def _results(operation: Callable[[Any, Any], Any], graph: bool) -> list[np.ndarray]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    def run(x):
        return operation(hvd, x)

    x = tf.constant([[1.0, 2.0], [10.0, 20.0]][hvd.rank()])
    results = (tf.function(run) if graph else run)(x)
    return [np.asarray(one) for one in (results if isinstance(results, list) else [results])]


GRADIENTS = {
    "allreduce": [[0.5 * 3, 0.5 * 3]] * 2,
    "allgather": [[1.5, 1.5]] * 2,
    "broadcast": [[0.0, 0.0], [1.5, 1.5]],
    "alltoall": [[1.0, 2.0]] * 2,
    "reducescatter": [[2.0, 4.0]] * 2,
}


@every_mode
@pytest.mark.parametrize("operation", GRADIENTS)
def test_gradients(world: Workers, operation: str, graph: bool) -> None:
    found = world.run(_gradient, OPERATIONS[operation], graph)
    np.testing.assert_allclose(found, GRADIENTS[operation])


def _gradient(operation: Callable[[Any, Any], Any], graph: bool) -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = operation(hvd, x)
            first = results[0] if isinstance(results, list) else results
            loss = tf.reduce_sum(first) * float(hvd.rank() + 1)
        return tape.gradient(loss, x)

    gradient = (tf.function(run) if graph else run)(tf.constant([1.0, 2.0]))
    return [float(value) for value in gradient]


@every_mode
def test_misuse(world: Workers, graph: bool) -> None:
    assert_raised(world.run(_misuse, graph), "InvalidArgumentError", "root rank is 9")


def _misuse(graph: bool) -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    def call():
        return hvd.broadcast(tf.ones(2), 9)

    return error_of(tf.function(call) if graph else call)


def test_mismatch(world: Workers) -> None:
    assert_raised(world.run(_mismatch), "FailedPreconditionError", "Mismatched")


def _mismatch() -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    return error_of(hvd.allreduce, tf.ones(2 + hvd.rank()), name="bad")
