"""Operations in what XLA compiles (``jit_compile=True``): the results, gradients and errors of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.world import Workers
from tests.tensorflow.marks import needs_xla, on_worlds

pytestmark = [pytest.mark.timeout(400), needs_xla]

TYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def _given(rank: int, rows: int = 4) -> np.ndarray:
    """Small whole numbers: sums are exact in every type."""
    return (np.arange(rows * 3).reshape(rows, 3) % 5 + 3 * rank).astype("f4")


def _compiled(operation: Callable[..., Any], inputs: Any, kind: str = "float32") -> Any:
    """In a worker: the operation's results, twice, from a function that XLA compiles."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    function = tf.function(lambda x: operation(hvd, x), jit_compile=True, autograph=False)
    x = tf.cast(inputs[hvd.rank()], kind)
    outcomes = [tf.nest.map_structure(lambda t: tf.cast(t, "float64").numpy(), function(x)) for _ in "ab"]
    tf.nest.map_structure(np.testing.assert_array_equal, *outcomes)
    return outcomes[0]


def _run(world: Workers, operation: Callable[..., Any], kind: str = "float32", rows: int = 4) -> list[Any]:
    inputs = [_given(rank, rows) for rank in range(len(world.pids))]
    return world.run(_compiled, operation, inputs, kind)


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("op", ["Sum", "Min", "Max", "Product"])
def test_allreduce(world: Workers, op: str) -> None:
    inputs = [_given(rank) for rank in range(len(world.pids))]
    reduce = {"Sum": np.add, "Min": np.minimum, "Max": np.maximum, "Product": np.multiply}[op].reduce
    for result in _run(world, lambda hvd, x: hvd.allreduce(x, op=getattr(hvd, op))):
        np.testing.assert_array_equal(result, reduce(inputs))


@on_worlds(2)
@pytest.mark.parametrize("kind", TYPES)
def test_types(world: Workers, kind: str) -> None:
    for result in _run(world, lambda hvd, x: hvd.allreduce(x, op=hvd.Sum), kind):
        np.testing.assert_array_equal(result, _given(0) + _given(1))


@on_worlds(2)
def test_bool_and_scalars(world: Workers) -> None:
    def operation(hvd, x):
        return hvd.broadcast(x > 2.0, 1), hvd.allreduce(x[0, 0], op=hvd.Sum), hvd.allreduce(x[:0])

    for flags, number, nothing in _run(world, operation):
        np.testing.assert_array_equal(flags, _given(1) > 2.0)
        assert number == 3.0
        assert nothing.shape == (0, 3)


@on_worlds(2)
@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_factors_and_compression(world: Workers, compression: str) -> None:
    def operation(hvd, x):
        options = {"compression": getattr(hvd.Compression, compression), "prescale_factor": 0.5}
        return hvd.allreduce(x, postscale_factor=4.0, **options)

    for result in _run(world, operation):
        np.testing.assert_array_equal(result, _given(0) + _given(1))


@on_worlds(1, 2, 3)
def test_groups(world: Workers) -> None:
    """A group is one operation, of several types."""
    size = len(world.pids)
    inputs = [_given(rank, 6) for rank in range(size)]

    def operation(hvd, x):
        import tensorflow as tf

        other = tf.cast(x[:, :1], tf.int64)
        return (
            hvd.grouped_allreduce([x, other], op=hvd.Sum),
            hvd.grouped_allgather([x, other]),
            hvd.grouped_reducescatter([x, other], op=hvd.Sum),
        )

    total, everything = sum(inputs), np.concatenate(inputs)
    for rank, (reduced, gathered, scattered) in enumerate(_run(world, operation, rows=6)):
        share = slice(rank * 6 // size, (rank + 1) * 6 // size)
        for found, wanted in ((reduced, total), (gathered, everything), (scattered, total[share])):
            np.testing.assert_array_equal(found[0], wanted)
            np.testing.assert_array_equal(found[1], wanted[:, :1])


@on_worlds(1, 2, 3)
def test_other_operations(world: Workers) -> None:
    """Rows that do not divide, too; ranks and sizes are those of the run."""
    size = len(world.pids)
    inputs = [_given(rank, 6) for rank in range(size)]

    def operation(hvd, x):
        numbers = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]
        moved = [hvd.allgather(x), hvd.broadcast(x, hvd.size() - 1), hvd.alltoall(x)]
        return [*moved, hvd.reducescatter(x[:5], op=hvd.Sum), *numbers, hvd.process_set_included_op()]

    for rank, results in enumerate(_run(world, operation, rows=6)):
        part = 6 // size
        exchanged = np.concatenate([one[rank * part : (rank + 1) * part] for one in inputs])
        rows = np.array_split(sum(inputs)[:5], size)[rank]
        for found, wanted in zip(
            results[:4], [np.concatenate(inputs), inputs[-1], exchanged, rows], strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
        assert results[4:] == [rank, size, rank, size, 1]


@on_worlds(3)
def test_in_a_process_set(world: Workers) -> None:
    outcomes = world.run(_in_a_set)
    assert outcomes[0] is None
    for reduced, gathered in outcomes[1:]:
        np.testing.assert_array_equal(reduced, _given(1) + _given(2))
        np.testing.assert_array_equal(gathered, np.concatenate([_given(1), _given(2)]))


def _in_a_set() -> Any:
    import horovod.tensorflow as hvd

    members = hvd.add_process_set([1, 2])
    try:
        if hvd.rank() == 0:
            return None

        def operation(hvd, x):
            options = {"process_set": members}
            return hvd.allreduce(x, op=hvd.Sum, **options), hvd.allgather(x, **options)

        return _compiled(operation, [_given(rank) for rank in range(3)])
    finally:
        hvd.remove_process_set(members)


@on_worlds(2)
@pytest.mark.parametrize("large", [0, 12])
def test_many(world: Workers, large: int) -> None:
    """XLA starts small ones one by one and large ones together; and optimises, and so orders, each rank's
    program in its own way, as the factors differ."""

    def operation(hvd, x):
        import tensorflow as tf

        parts = [x * float(i) + float(hvd.rank()) for i in range(50)]
        parts += [tf.fill([1 << 20], float(i + hvd.rank())) * x[0, 1] for i in range(large)]
        results = [hvd.allreduce(part * float(hvd.rank()), op=hvd.Sum) for part in parts]
        return [result[:1] * float(i + 1) for i, result in enumerate(results)]

    x = _given(1)
    wanted = [(x * i + 1.0)[:1] * (i + 1) for i in range(50)]
    wanted += [np.full(1, (i + 1) * x[0, 1] * (50 + i + 1)) for i in range(large)]
    for results in _run(world, operation):
        for found, expected in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


@on_worlds(2)
def test_loops_conditions_and_functions(world: Workers) -> None:
    """In the order of the program through all of them, though nothing but their order connects them."""

    def operation(hvd, x):
        import tensorflow as tf

        own = float(hvd.rank())

        @tf.function(autograph=False)
        def inner(y):
            return hvd.allreduce(y * own, op=hvd.Sum, name="inner")

        first = hvd.allreduce(x + own, op=hvd.Sum)
        looped = tf.while_loop(
            lambda i, _: i < 5, lambda i, y: (i + 1, hvd.allreduce(y, name="loop")), [0, x * own]
        )[1]
        chosen = tf.cond(
            tf.reduce_sum(x) > 0.0,
            lambda: hvd.allreduce(x * own, op=hvd.Sum, name="yes"),
            lambda: hvd.allgather(x, name="no")[:4],
        )
        return first, looped, chosen, inner(x), hvd.allreduce(x - own, op=hvd.Sum)

    both = _given(0) + _given(1)
    for results in _run(world, operation):
        wanted = [both + 1, _given(1) / 2, _given(1), _given(1), both - 1]
        for found, expected in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


@on_worlds(2)
def test_what_nobody_uses(world: Workers) -> None:
    """Two calls of the same, and one whose result is dropped: none is left out."""
    assert world.run(_count) == [3, 3]


def _count() -> int:
    import tensorflow as tf

    import horovod.numpy as plain
    import horovod.tensorflow as hvd

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        hvd.allreduce(x)
        return hvd.allreduce(x) + hvd.allreduce(x)

    before = plain.counters()["submitted"]
    step(tf.ones(3))
    return plain.counters()["submitted"] - before


@on_worlds(2)
def test_names(world: Workers) -> None:
    """The same from trace to trace, whatever one rank has traced before; and matched by ranks that do not
    compile. Any text is a name."""
    world.run(_names)


def _names() -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum), jit_compile=True, autograph=False)
    for rows in range(3 + 2 * hvd.rank(), 1, -1):
        step.get_concrete_function(tf.ones(rows))
    assert step(tf.ones(3)).numpy().tolist() == [2.0] * 3
    name = 'a "name" of \\ any\nkind: é 语'
    mixed = tf.function(
        lambda x: hvd.allreduce(x, op=hvd.Sum, name=name), jit_compile=hvd.rank() == 0, autograph=False
    )
    assert mixed(tf.ones(3)).numpy().tolist() == [2.0] * 3


@on_worlds(2)
def test_sparse(world: Workers) -> None:
    """``tf.IndexedSlices`` are gathered, if every rank has as many rows."""

    def operation(hvd, x):
        import tensorflow as tf

        slices = tf.IndexedSlices(x, tf.constant([0, 2, 1, 0]) + hvd.rank(), tf.constant([4, 3]))
        return tf.math.unsorted_segment_sum(*_pair(hvd.allreduce(slices, op=hvd.Sum)), 4)

    wanted = np.zeros((4, 3))
    for rank in range(2):
        np.add.at(wanted, np.array([0, 2, 1, 0]) + rank, _given(rank))
    for result in _run(world, operation):
        np.testing.assert_array_equal(result, wanted)


def _pair(slices: Any) -> tuple[Any, Any]:
    return slices.values, slices.indices
