"""Options of reductions that other frontends do not have, or not in this form."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds


@on_worlds(2)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_engine_compresses(world: Workers, graph: bool, name: str) -> None:
    """As if each rank had cast its tensor; sums of halves are rounded once."""
    outcomes = world.run(_compress, graph, name)
    for found, wanted in outcomes:
        np.testing.assert_array_equal(found, wanted)


def _compress(graph: bool, name: str) -> tuple[np.ndarray, np.ndarray]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    kind = {"fp16": tf.float16, "bf16": tf.bfloat16}[name]
    compression = getattr(hvd.Compression, name)
    given = [np.random.default_rng(rank).standard_normal(1000).astype("f4") for rank in range(2)]

    def run(x):
        return hvd.allreduce(x, op=hvd.Sum, compression=compression)

    result = (tf.function(run) if graph else run)(tf.constant(given[hvd.rank()]))
    cast = [tf.cast(tf.cast(tf.constant(one), kind), tf.float32) for one in given]
    wanted = tf.cast(tf.cast(cast[0] + cast[1], kind), tf.float32)
    assert result.dtype == tf.float32
    return result.numpy(), wanted.numpy()


@on_worlds(2)
def test_compression_of_your_own(world: Workers) -> None:
    for derived in (False, True):
        assert world.run(_own_compression, derived) == [[6.0, 6.0, 6.0]] * 2


def _own_compression(derived: bool) -> list[float]:
    """Also where it derives from one that the engine does by itself."""
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.tensorflow.compression import Compressor

    class Halved(hvd.Compression.fp16 if derived else Compressor):
        @staticmethod
        def compress(tensor):
            return tensor / 2.0, 4.0

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * ctx

    x = tf.constant([float(hvd.rank() + 1)])
    single = hvd.allreduce(x, op=hvd.Sum, compression=Halved)
    (grouped,) = hvd.grouped_allreduce([x], op=hvd.Sum, compression=Halved)
    rows = hvd.reducescatter(tf.concat([x, x], 0), op=hvd.Sum, compression=Halved)
    return [float(value[0]) for value in (single, grouped, rows)]


@on_worlds(2)
def test_the_old_average(world: Workers) -> None:
    assert world.run(_average) == [([1.5, 3.0], ["DeprecationWarning"] * 2)] * 2


def _average() -> tuple[list[float], list[str]]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    x = tf.constant([float(hvd.rank() + 1)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        results = [hvd.allreduce(x, True), hvd.allreduce(x, average=False)]
    return [float(r[0]) for r in results], [w.category.__name__ for w in seen]


@on_worlds(2)
def test_raw_operations_sum(world: Workers) -> None:
    assert world.run(_raw) == [[3.0, 3.0, 3.0, 3.0]] * 2


def _raw() -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.tensorflow import mpi_ops

    x = tf.fill([2], float(hvd.rank() + 1))
    results = [
        mpi_ops._allreduce(x),
        mpi_ops._grouped_allreduce([x])[0],
        mpi_ops._reducescatter(x),
        mpi_ops._grouped_reducescatter([x])[0],
    ]
    return [float(r[0]) for r in results]


@on_worlds(2)
@pytest.mark.parametrize("device", ["", "/CPU:0"])
def test_devices(world: Workers, device: str) -> None:
    assert world.run(_on_device, device) == [[1.5, 1.5]] * 2


def _on_device(device: str) -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    x = tf.constant([float(hvd.rank() + 1)])
    single = hvd.allreduce(x, device_dense=device, device_sparse=device)
    (grouped,) = hvd.grouped_allreduce([x], device_dense=device)
    return [float(single[0]), float(grouped[0])]


@on_worlds(2)
def test_anything_that_makes_a_tensor(world: Workers) -> None:
    assert world.run(_array_likes) == [[1.5] * 4] * 2


def _array_likes() -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    own = float(hvd.rank() + 1)
    given = [own, [own], np.array([own]), tf.Variable([own])]
    return [float(np.ravel(hvd.allreduce(one))[0]) for one in given]


@on_worlds(2)
def test_join(world: Workers) -> None:
    """The rank that joined takes part in what the other still reduces."""
    joins = world.run(_join)
    assert [sums for _, sums in joins] == [[], [1.0, 1.0]]
    assert {last for last, _ in joins} == {1}


def _join() -> tuple[int, list[float]]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    sums = []
    for _ in range(2 * hvd.rank()):
        sums.append(float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="uneven")))
    last = hvd.join()
    assert last.dtype == tf.int32
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == 2.0
    return int(last), sums


@on_worlds(2)
def test_variables_in_place(world: Workers) -> None:
    assert world.run(_broadcast_in_place) == [[1.0, 2.0, 1.0, 2.0]] * 2


def _broadcast_in_place() -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    variables = [tf.Variable(float(i + 1 + 10 * hvd.rank())) for i in range(2)]
    updated = hvd.broadcast_(variables, 0)
    return [float(value) for value in [*updated, *variables]]
