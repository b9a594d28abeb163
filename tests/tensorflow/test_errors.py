"""Errors are those of ``tf.errors`` that the contract names, on every rank, eagerly and in functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers
from tests.tensorflow.marks import on_worlds

every_mode = pytest.mark.parametrize("graph", [False, True], ids=["eager", "function"])

Call = Callable[[Any, Any], Any]

ALONE: dict[str, tuple[Call, str, str]] = {
    "unknown set": (
        lambda hvd, tf: hvd.mpi_ops._allreduce(tf.ones(2), process_set=99),
        "InvalidArgumentError",
        "99",
    ),
    "root": (lambda hvd, tf: hvd.broadcast(tf.ones(2), 7), "InvalidArgumentError", "root rank is 7"),
    "scalar allgather": (lambda hvd, tf: hvd.allgather(tf.constant(1.0)), "InvalidArgumentError", "scalar"),
    "scalar reducescatter": (
        lambda hvd, tf: hvd.reducescatter(tf.constant(1.0)),
        "InvalidArgumentError",
        "scalar",
    ),
    "splits too many": (lambda hvd, tf: hvd.alltoall(tf.ones(4), [1] * 9), "InvalidArgumentError", "splits"),
    "splits of two dimensions": (
        lambda hvd, tf: hvd.alltoall(tf.ones(4), [[1, 1]]),
        "InvalidArgumentError",
        "one dimension",
    ),
    "splits that do not fit": (
        lambda hvd, tf: hvd.alltoall(tf.ones(2), [2] * hvd.size()),
        "InvalidArgumentError",
        "more than the first dimension",
    ),
    "no splits": (lambda hvd, tf: hvd.alltoall(tf.ones(5)), "InvalidArgumentError", "can divide"),
    "reducescatter max": (
        lambda hvd, tf: hvd.reducescatter(tf.ones(4), op=hvd.Max),
        "AbortedError",
        "Sum and Average",
    ),
    "sum of bool": (
        lambda hvd, tf: hvd.allreduce(tf.constant([True]), op=hvd.Sum),
        "InvalidArgumentError",
        "bool",
    ),
    "factor": (
        lambda hvd, tf: hvd.allreduce(tf.ones(2), prescale_factor=float("nan")),
        "InvalidArgumentError",
        "finite",
    ),
}


@on_worlds(2)
@every_mode
@pytest.mark.parametrize("case", ALONE)
def test_misuse(world: Workers, graph: bool, case: str) -> None:
    """Seen by one rank alone; operations after it still match."""
    call, kind, part = ALONE[case]
    assert_raised(world.run(_misuse, call, graph)[:1], kind, part)


def _misuse(call: Call, graph: bool) -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    outcome = None
    if hvd.rank() == 0:
        outcome = error_of(tf.function(lambda: call(hvd, tf)) if graph else lambda: call(hvd, tf))
    assert hvd.allreduce(tf.ones(3), op=hvd.Sum).numpy().tolist() == [2.0] * 3
    return outcome


MISMATCHED: dict[str, tuple[Call, str]] = {
    "shape": (lambda hvd, tf: hvd.allreduce(tf.ones(2 + hvd.rank()), name="bad shape"), "shapes"),
    "type": (
        lambda hvd, tf: hvd.allreduce(tf.ones(2, [tf.float32, tf.int32][hvd.rank()]), name="bad type"),
        "data types",
    ),
    "root": (lambda hvd, tf: hvd.broadcast(tf.ones(2), hvd.rank(), name="bad root"), "root ranks"),
    "factors": (
        lambda hvd, tf: hvd.allreduce(tf.ones(2), prescale_factor=1.0 + hvd.rank(), name="bad factor"),
        "prescale",
    ),
}


@on_worlds(2)
@every_mode
@pytest.mark.parametrize("case", MISMATCHED)
def test_mismatch(world: Workers, graph: bool, case: str) -> None:
    call, part = MISMATCHED[case]
    outcomes = world.run(_mismatch, call, graph)
    assert_raised(outcomes, "FailedPreconditionError", "Mismatched", part)


def _mismatch(call: Call, graph: bool) -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    outcome = error_of(tf.function(lambda: call(hvd, tf)) if graph else lambda: call(hvd, tf))
    assert hvd.allreduce(tf.ones(3), op=hvd.Sum).numpy().tolist() == [2.0] * 3
    return outcome


PLAIN: dict[str, tuple[Call, str, str]] = {
    "average and op": (
        lambda hvd, tf: hvd.allreduce(tf.ones(2), average=True, op=hvd.Sum),
        "ValueError",
        "only one",
    ),
    "an unknown op": (lambda hvd, tf: hvd.allreduce(tf.ones(2), op=6), "ValueError", "op is"),
    "a set without an id": (
        lambda hvd, tf: hvd.allreduce(tf.ones(2), process_set=hvd.ProcessSet([0])),
        "TypeError",
        "not registered",
    ),
    "splits of int64": (
        lambda hvd, tf: hvd.alltoall(tf.ones(4), tf.constant([2, 2], tf.int64)),
        "InvalidArgumentError",
        "int32",
    ),
    "an unsupported type": (
        lambda hvd, tf: hvd.allreduce(tf.ones(2, tf.complex64)),
        "InvalidArgumentError",
        "complex64",
    ),
}


@on_worlds(2)
@pytest.mark.parametrize("case", PLAIN)
def test_refused_at_the_call(world: Workers, case: str) -> None:
    call, kind, part = PLAIN[case]
    assert_raised(world.run(_misuse, call, False)[:1], kind, part)


@on_worlds(3)
def test_adasum_of_three(world: Workers) -> None:
    outcomes = world.run(_adasum)
    assert_raised(outcomes, "NotImplementedError", "Adasum")


def _adasum() -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    return error_of(hvd.allreduce, tf.ones(2), op=hvd.Adasum)


@on_worlds(2)
def test_a_name_in_flight(world: Workers) -> None:
    assert_raised(world.run(_twice)[:1], "InvalidArgumentError", "in flight", "twice")


def _twice() -> Raised | None:
    import threading
    import time

    import tensorflow as tf

    import horovod.numpy as plain
    import horovod.tensorflow as hvd

    outcome = None
    if hvd.rank() == 0:
        before = plain.counters()["submitted"]
        first = tf.function(lambda: hvd.allreduce(tf.ones(2), name="twice"))
        thread = threading.Thread(target=first)
        thread.start()
        while plain.counters()["submitted"] == before:
            time.sleep(0.001)
        outcome = error_of(hvd.allreduce, tf.ones(2), name="twice")
    plain.barrier()  # until here no other rank submits it, so that it is in flight for sure
    if hvd.rank() == 0:
        thread.join()
    else:
        hvd.allreduce(tf.ones(2), name="twice")
    return outcome


@on_worlds(3)
def test_a_removed_process_set(world: Workers) -> None:
    outcomes = world.run(_removed)
    assert_raised(outcomes[1:2], "AbortedError", "removed")


def _removed() -> Raised | None:
    import threading
    import time

    import tensorflow as tf

    import horovod.numpy as plain
    import horovod.tensorflow as hvd

    members = hvd.add_process_set([1, 2])
    outcome: list[Raised | None] = [None]
    if hvd.rank() == 1:
        function = tf.function(lambda: hvd.allreduce(tf.ones(2), name="orphan", process_set=members))
        before = plain.counters()["submitted"]
        thread = threading.Thread(target=lambda: outcome.append(error_of(function)))
        thread.start()
        while plain.counters()["submitted"] == before:
            time.sleep(0.001)
    plain.barrier()
    hvd.remove_process_set(members)
    if hvd.rank() == 1:
        thread.join()
    return outcome[-1]
