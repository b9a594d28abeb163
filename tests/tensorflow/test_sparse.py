"""``tf.IndexedSlices``: gathered, not reduced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds


def _slices(tf: Any, rank: int, seed: int = 0) -> Any:
    values = tf.fill([rank + 1, 2], float(rank + 1 + seed))
    return tf.IndexedSlices(values, tf.range(rank + 1, dtype=tf.int64), tf.constant([5, 2], tf.int64))


def _dense(size: int, op: int, seed: int = 0) -> np.ndarray:
    total = np.zeros((5, 2), "f4")
    for rank in range(size):
        total[: rank + 1] += rank + 1 + seed
    return total / (size if op == 0 else 1)


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("op", [0, 1], ids=["average", "sum"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "function"])
def test_allreduce(world: Workers, op: int, graph: bool) -> None:
    size = len(world.pids)
    for found in world.run(_reduce, op, graph):
        np.testing.assert_allclose(found, _dense(size, op))


def _reduce(op: int, graph: bool) -> np.ndarray:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    def run():
        return hvd.allreduce(_slices(tf, hvd.rank()), op=op)

    result = tf.function(run)() if graph else run()
    assert isinstance(result, tf.IndexedSlices)
    assert result.dense_shape.numpy().tolist() == [5, 2]
    return np.asarray(tf.convert_to_tensor(result))


@on_worlds(2)
@pytest.mark.parametrize("dense", [0, 2], ids=["sparse alone", "with dense"])
def test_groups_may_be_mixed(world: Workers, dense: int) -> None:
    for sparse, others in world.run(_reduce_group, dense):
        for seed, found in enumerate(sparse):
            np.testing.assert_allclose(found, _dense(2, 0, seed))
        assert others == [1.5] * dense


def _reduce_group(dense: int) -> tuple[list[np.ndarray], list[float]]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    own = tf.constant(float(hvd.rank() + 1))
    given = [_slices(tf, hvd.rank()), *[own] * dense, _slices(tf, hvd.rank(), 1)]
    first, *others, last = hvd.grouped_allreduce(given)
    return [np.asarray(tf.convert_to_tensor(one)) for one in (first, last)], [float(o) for o in others]


REFUSED = {
    "min": {"op": 3},
    "adasum": {"op": 2},
    "prescale": {"prescale_factor": 0.5},
    "postscale": {"postscale_factor": 0.5},
}


@on_worlds(1)
@pytest.mark.parametrize("function", ["allreduce", "grouped_allreduce"])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(world: Workers, function: str, case: str) -> None:
    assert_raised(world.run(_refused, function, REFUSED[case]), "NotImplementedError", "IndexedSlices")


def _refused(function: str, options: dict[str, Any]) -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    slices = _slices(tf, 0)
    return error_of(getattr(hvd, function), slices if function == "allreduce" else [slices], **options)
