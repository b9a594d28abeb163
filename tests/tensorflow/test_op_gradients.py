"""Gradients of the operations, against numpy: the formulas of the contract, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds

every_mode = pytest.mark.parametrize("graph", [False, True], ids=["eager", "function"])


def _weights(rank: int, rows: int) -> np.ndarray:
    """What the loss multiplies a result by, so that gradients differ by rank and element."""
    return (np.arange(rows * 2, dtype="f4").reshape(rows, 2) + 1) * (rank + 1)


def _gradients(operation: Callable[..., Any], rows: int, graph: bool) -> list[np.ndarray]:
    """In a worker: the gradient of sum(w * operation(x)) for x of so many rows."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = operation(hvd, x)
            results = list(results) if isinstance(results, list | tuple) else [results]
            loss = tf.add_n([tf.reduce_sum(_scaled(tf, hvd, result)) for result in results])
        return tape.gradient(loss, x)

    x = tf.constant(np.arange(rows * 2, dtype="f4").reshape(rows, 2))
    function = tf.function(run) if graph else run
    return [np.asarray(function(x)) for _ in range(2)]


def _scaled(tf: Any, hvd: Any, result: Any) -> Any:
    rows = tf.shape(result)[0]
    ramp = tf.reshape(tf.cast(tf.range(rows * 2), tf.float32), [rows, 2]) + 1.0
    return result * ramp * float(hvd.rank() + 1)


def _check(outcomes: list[list[np.ndarray]], wanted: list[np.ndarray]) -> None:
    for found, expected in zip(outcomes, wanted, strict=True):
        for gradient in found:
            np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@on_worlds(1, 2, 3)
@every_mode
@pytest.mark.parametrize("op", [0, 1], ids=["average", "sum"])
@pytest.mark.parametrize("grouped", [False, True], ids=["single", "grouped"])
def test_allreduce(world: Workers, graph: bool, op: int, grouped: bool) -> None:
    """The gradient is reduced like the tensor, with the same factors."""
    size = len(world.pids)

    def operation(hvd, x):
        options = {"op": op, "prescale_factor": 0.5, "postscale_factor": 3.0}
        if grouped:
            return hvd.grouped_allreduce([x, 2.0 * x], **options)
        return hvd.allreduce(x, **options)

    total = sum(_weights(rank, 3) for rank in range(size)) * 1.5 / (size if op == 0 else 1)
    _check(world.run(_gradients, operation, 3, graph), [total * (3 if grouped else 1)] * size)


@on_worlds(1, 2, 3)
@every_mode
@pytest.mark.parametrize("grouped", [False, True], ids=["single", "grouped"])
def test_allgather(world: Workers, graph: bool, grouped: bool) -> None:
    """The average, of which each rank gets its own rows."""
    size = len(world.pids)

    def operation(hvd, x):
        mine = x[: hvd.rank() + 1]
        return hvd.grouped_allgather([mine, mine * 3.0]) if grouped else hvd.allgather(mine)

    rows = sum(range(1, size + 1))
    averaged = sum(_weights(rank, rows) for rank in range(size)) / size * (4 if grouped else 1)
    wanted = []
    for rank in range(size):
        begin = sum(range(1, rank + 1))
        gradient = np.zeros((size, 2), "f4")
        gradient[: rank + 1] = averaged[begin : begin + rank + 1]
        wanted.append(gradient)
    _check(world.run(_gradients, operation, size, graph), wanted)


@on_worlds(1, 2, 3)
@every_mode
def test_broadcast(world: Workers, graph: bool) -> None:
    """The average, for the root alone."""
    size = len(world.pids)
    root = size - 1
    averaged = sum(_weights(rank, 3) for rank in range(size)) / size
    wanted = [averaged if rank == root else np.zeros((3, 2), "f4") for rank in range(size)]
    _check(world.run(_gradients, lambda hvd, x: hvd.broadcast(x, root), 3, graph), wanted)


@on_worlds(1, 2, 3)
@every_mode
@pytest.mark.parametrize("splits", [False, True], ids=["even", "splits"])
def test_alltoall(world: Workers, graph: bool, splits: bool) -> None:
    """What came goes back; rows that were sent nowhere have no gradient."""
    size = len(world.pids)
    rows = 2 * size + 1 if splits else 2 * size

    def operation(hvd, x):
        return hvd.alltoall(x, [2] * hvd.size())[0] if splits else hvd.alltoall(x)

    wanted = []
    for rank in range(size):
        gradient = np.zeros((rows, 2), "f4")
        for peer in range(size):
            gradient[2 * peer : 2 * peer + 2] = _weights(peer, 2 * size)[2 * rank : 2 * rank + 2]
        wanted.append(gradient)
    _check(world.run(_gradients, operation, rows, graph), wanted)


@on_worlds(1, 2, 3)
@every_mode
@pytest.mark.parametrize("op", [0, 1], ids=["average", "sum"])
@pytest.mark.parametrize("grouped", [False, True], ids=["single", "grouped"])
def test_reducescatter(world: Workers, graph: bool, op: int, grouped: bool) -> None:
    """Gathered from all ranks, times their number if the result is a sum, times the factors."""
    size = len(world.pids)

    def operation(hvd, x):
        options = {"op": op, "prescale_factor": 0.5, "postscale_factor": 3.0}
        if grouped:
            return hvd.grouped_reducescatter([x, x], **options)
        return hvd.reducescatter(x, **options)

    gathered = np.concatenate([_weights(rank, 2) for rank in range(size)])
    wanted = gathered * 1.5 * (size if op == 1 else 1) * (2 if grouped else 1)
    _check(world.run(_gradients, operation, 2 * size, graph), [wanted] * size)


@on_worlds(3)
@every_mode
def test_in_a_process_set(world: Workers, graph: bool) -> None:
    """Ranks and sizes are those of the set."""
    outcomes = world.run(_in_a_set, graph)
    averaged = (_weights(1, 4) + _weights(2, 4)) / 2
    assert outcomes[0] is None
    _check(outcomes[1:], [averaged[:2], averaged[2:]])


def _in_a_set(graph: bool) -> list[np.ndarray] | None:
    import horovod.tensorflow as hvd

    members = hvd.add_process_set([1, 2])
    try:
        if hvd.rank() == 0:
            return None
        return _gradients(lambda hvd, x: hvd.allgather(x, process_set=members), 2, graph)
    finally:
        hvd.remove_process_set(members)
