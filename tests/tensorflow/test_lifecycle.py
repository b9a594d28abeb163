"""Kernels outlive worlds: graphs work again after another ``init()``, and say so where there is no world."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.frameworks import import_tensorflow
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers, Worlds, workers
from tests.tensorflow.marks import SETTINGS


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> Iterator[Workers]:
    """Two processes that are in no world: every test makes its own, and ends it."""
    settings = dict(SETTINGS)
    two = workers(2, settings=settings, nursery=worlds.nursery(settings, import_tensorflow))
    yield two
    two.kill()


def test_kernels_across_worlds(world: Workers) -> None:
    outcomes = world.run(_across_worlds)
    assert [results for results, _ in outcomes] == [[3.0, 3.0, 3.0]] * 2
    for _, errors in outcomes:
        assert_raised(errors, "FailedPreconditionError", "hvd.init()")


def _across_worlds() -> tuple[list[float], list[Raised | None]]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    @tf.function
    def step(x):
        return hvd.allreduce(x, op=hvd.Sum, name="x")

    results, errors = [], [error_of(hvd.allreduce, tf.ones(1), name="x"), error_of(step, tf.ones(1))]
    for _ in range(3):
        hvd.init()
        results.append(float(step(tf.constant([hvd.rank() + 1.0]))[0]))
        hvd.shutdown()
        errors += [error_of(step, tf.ones(1)), error_of(hvd.allgather, tf.ones(1), name="x")]
        errors.append(error_of(tf.function(hvd.rank_op)))
    assert int(hvd.process_set_included_op()) == -1
    return results, errors


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "function"])
def test_shutdown_with_operations_in_flight(world: Workers, graph: bool) -> None:
    outcomes = world.run(_in_flight, graph)
    assert_raised(outcomes[:1], "UnknownError", "shut down")


def _in_flight(graph: bool) -> Raised | None:
    import threading
    import time

    import tensorflow as tf

    import horovod.numpy as plain
    import horovod.tensorflow as hvd

    hvd.init()
    plain.barrier()
    outcome: list[Raised | None] = [None]
    if hvd.rank() == 0:

        def call():
            return hvd.allreduce(tf.ones(2), name="never")

        function = tf.function(call) if graph else call
        before = plain.counters()["submitted"]
        thread = threading.Thread(target=lambda: outcome.append(error_of(function)))
        thread.start()
        while plain.counters()["submitted"] == before:
            time.sleep(0.001)
        hvd.shutdown()
        thread.join()
    hvd.shutdown()
    return outcome[-1]


def test_a_lost_rank(world: Workers) -> None:
    """Those that wait for it get an error that names it."""
    outcomes = world.run(_lost)
    assert_raised(outcomes[:1], "UnknownError", "rank 1", "has shut down")


def _lost() -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    hvd.init()
    outcome = None
    if hvd.rank() == 0:
        outcome = error_of(tf.function(lambda: hvd.allreduce(tf.ones(2), name="alone")))
    hvd.shutdown()
    return outcome


def test_forked_children(world: Workers) -> None:
    for text in world.run(_forked):
        assert text.startswith("FailedPreconditionError")
        assert "forked child" in text


def _forked() -> str:
    import os
    import warnings

    import tensorflow as tf

    import horovod.tensorflow as hvd

    hvd.init()
    x = tf.ones(2)
    hvd.allreduce(x)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads are running: the child does next to nothing
        child = os.fork()
    if child == 0:
        error = error_of(hvd.allreduce, x)
        text = "nothing" if error is None else f"{error.classes[0]}: {error.message}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 10_000).decode()
    os.close(reader)
    os.waitpid(child, 0)
    hvd.shutdown()
    return text
