"""Operations in ``tf.function``: many in flight, loops, conditions, names, what nobody uses."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds

COUNT = 100
SECONDS = 30.0


@on_worlds(2, 3)
def test_all_in_flight_at_once(world: Workers) -> None:
    """None completes before all are submitted: the last rank comes when the first has submitted all."""
    size = len(world.pids)
    wanted = [float(i * size + sum(range(size))) for i in range(COUNT)]
    for results, in_flight in world.run(_all_in_flight):
        assert results == wanted
        assert in_flight in (None, COUNT)


def _all_in_flight() -> tuple[list[float], int | None]:
    import tensorflow as tf

    import horovod.numpy as plain
    import horovod.tensorflow as hvd

    # In another order on each rank.
    order = np.random.default_rng(hvd.rank()).permutation(COUNT).tolist()

    @tf.function
    def step(x):
        results = {i: hvd.allreduce(x + float(i), op=hvd.Sum, name=f"flight.{i}") for i in order}
        return [results[i] for i in range(COUNT)]

    x = tf.fill([16], float(hvd.rank()))
    step.get_concrete_function(x)  # takes a while
    if hvd.rank() != 0:
        plain.barrier()
        return [float(result[0]) for result in step(x)], None

    def pending():
        counters = plain.counters()
        return counters["submitted"] - counters["completed"] - counters["failed"]

    results: list[float] = []
    thread = threading.Thread(target=lambda: results.extend(float(r[0]) for r in step(x)))
    thread.start()
    end = time.monotonic() + SECONDS
    while pending() < COUNT and time.monotonic() < end:
        time.sleep(0.001)
    in_flight = pending()
    plain.barrier()
    thread.join()
    return results, in_flight


@on_worlds(2)
def test_unused_results_run_all_the_same(world: Workers) -> None:
    assert world.run(_unused) == [[3, 3, 3]] * 2


def _unused() -> list[int]:
    import tensorflow as tf

    import horovod.numpy as plain
    import horovod.tensorflow as hvd

    @tf.function
    def step():
        hvd.allreduce(tf.ones(4), name="unused")
        hvd.allgather(tf.ones(4), name="unused")
        hvd.broadcast(tf.constant(1.0), 0, name="unused")
        return tf.constant(0)

    done = []
    for _ in range(3):
        before = plain.counters()["submitted"]
        step()
        done.append(plain.counters()["submitted"] - before)
    return done


@on_worlds(2, 3)
@pytest.mark.parametrize("depends", [False, True], ids=["independent", "dependent"])
def test_loops(world: Workers, depends: bool) -> None:
    """Iterations that do not depend on each other overlap."""
    size = len(world.pids)
    mean = sum(range(1, size + 1)) / size
    wanted = mean**5 if depends else mean * sum(range(1, 301))
    assert world.run(_loop, depends) == [pytest.approx(wanted)] * size


def _loop(depends: bool) -> float:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    own = float(hvd.rank() + 1)

    @tf.function
    def independent(x):
        total = tf.zeros_like(x)
        for i in tf.range(1, 301):
            total += hvd.allreduce(x * tf.cast(i, tf.float32))
        return total

    @tf.function
    def dependent(x):
        product = tf.ones_like(x)
        for _ in tf.range(5):
            product = hvd.allreduce(product * x)
        return product

    x = tf.constant([own])
    results = [float((dependent if depends else independent)(x)[0]) for _ in range(2)]
    assert results[0] == results[1]
    return results[0]


@on_worlds(2)
def test_conditions(world: Workers) -> None:
    """Branches of both conditions, and the function around them, use names of their own."""
    assert world.run(_conditions) == [[9.0, 15.0]] * 2


def _conditions() -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    @tf.function
    def step(x, more):
        a = tf.cond(more, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: x)
        b = tf.cond(more, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: x)
        return a + b + hvd.allreduce(x, op=hvd.Sum)

    x = tf.constant(float(hvd.rank() + 1))
    alone = float(step(x, tf.constant(False))) - 2 * float(x)
    return [float(step(x, tf.constant(True))), alone + 12.0]


@on_worlds(2)
def test_functions_in_functions(world: Workers) -> None:
    assert world.run(_nested) == [[12.0, 12.0]] * 2


def _nested() -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    @tf.function
    def inner(x):
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def outer(x):
        return inner(x) + inner(x)

    x = tf.constant(float(hvd.rank() + 1))
    return [float(outer(x)) for _ in range(2)]


@on_worlds(2)
def test_names_are_the_same_in_every_step(world: Workers) -> None:
    """The engine's cache knows the operations from the second step on."""
    for hits in world.run(_hits):
        assert hits[1:] == [10] * 4


def _hits() -> list[int]:
    import tensorflow as tf

    import horovod.numpy as plain
    import horovod.tensorflow as hvd

    @tf.function
    def step(x):
        return tf.add_n([hvd.allreduce(x * float(i)) for i in range(10)])

    hits = []
    for _ in range(5):
        before = plain.counters()["cache_hits"]
        step(tf.ones(7))
        plain.barrier()
        hits.append(plain.counters()["cache_hits"] - before)
    return hits


@on_worlds(1)
def test_shapes_in_graphs(world: Workers) -> None:
    (shapes,) = world.run(_shapes)
    assert shapes == {
        "allreduce": "(None, 3)",
        "grouped_allreduce": ["(None, 3)", "()"],
        "allgather": "(None, 3)",
        "grouped_allgather": ["(None, 3)", "(None,)"],
        "broadcast": "(None, 3)",
        "alltoall": ["(None, 3)", "(None,)"],
        "reducescatter": "(None, 3)",
        "unknown": "<unknown>",
        "size": "()",
    }


def _shapes() -> dict[str, Any]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    found: dict[str, Any] = {}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.float32),
            tf.TensorSpec([2], tf.float32),
            tf.TensorSpec(None, tf.float32),
        ]
    )
    def trace(x, y, z):
        results = {
            "allreduce": hvd.allreduce(x),
            "grouped_allreduce": hvd.grouped_allreduce([x, tf.constant(1.0)]),
            "allgather": hvd.allgather(x),
            "grouped_allgather": hvd.grouped_allgather([x, y]),
            "broadcast": hvd.broadcast(x, 0),
            "alltoall": list(hvd.alltoall(x, tf.constant([1]))),
            "reducescatter": hvd.reducescatter(x),
            "unknown": hvd.allgather(z),
            "size": hvd.size_op(),
        }
        for name, result in results.items():
            many = isinstance(result, list)
            found[name] = [str(r.shape) for r in result] if many else str(result.shape)

    trace.get_concrete_function()
    return found


@on_worlds(2)
def test_default_names(world: Workers) -> None:
    (names, *_) = world.run(_node_names)
    assert names == [
        "HorovodAllreduce_x_0",
        "HorovodAllreduce_x_0_1",
        "scope/HorovodBroadcast_x_0",
        "short",
        "scope/HorovodAllgather_x_0",
    ]


def _node_names() -> list[str]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    @tf.function
    def step(x):
        hvd.allreduce(x)
        hvd.allreduce(x)
        with tf.name_scope("scope"):
            hvd.broadcast(x, 0)
            hvd.allreduce(x, name="short", ignore_name_scope=True)
            hvd.allgather(x)

    graph = step.get_concrete_function(tf.TensorSpec([2], tf.float32, name="x")).graph
    nodes = [op for op in graph.get_operations() if op.type.startswith("Horovod")]
    return [op.get_attr("tensor_name").decode() for op in nodes]


@on_worlds(1)
def test_eager_names_do_not_grow_the_cache_of_kernels(world: Workers) -> None:
    """Without a name nothing of an eager operation changes from step to step: TensorFlow uses one kernel."""
    assert world.run(_eager_attributes) == [[(None, {"tensor_name": "", "waits": 1})] * 3]


def _eager_attributes() -> list[Any]:
    import tensorflow as tf

    from horovod.tensorflow._names import named

    return [named("HorovodAllreduce", tf.ones(i), None) for i in range(3)]


@on_worlds(2)
def test_ranks_and_sizes_at_run_time(world: Workers) -> None:
    outcomes = world.run(_queries)
    assert outcomes == [[rank, 2, rank, 2, 1, -3] for rank in range(2)]


def _queries() -> list[int]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    @tf.function
    def ask():
        return [
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
            hvd.process_set_included_op(77),
        ]

    return [int(value) for value in ask()]


@on_worlds(1, 2)
def test_operations_take_the_input_over_if_they_may(world: Workers) -> None:
    """A variable that is read is not changed, nor is a tensor that is used again."""
    size = len(world.pids)
    assert world.run(_forwarding) == [[float(size), 1.0, 1.0]] * size


def _forwarding() -> list[float]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    variable = tf.Variable(tf.ones(1000))

    @tf.function
    def step():
        x = tf.ones(1000) * tf.random.uniform([], 1.0, 1.0)
        summed = hvd.allreduce(x, op=hvd.Sum)
        from_variable = hvd.allreduce(variable, op=hvd.Sum)
        return summed + 0.0 * from_variable, x

    summed, x = step()
    return [float(summed[999]), float(x[999]), float(variable[999])]
