"""Errors of operations that XLA compiles: their classes and words, and what cannot be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers
from tests.tensorflow.marks import needs_xla, on_worlds

pytestmark = [pytest.mark.timeout(400), needs_xla]

Call = Callable[[Any, Any], Any]

MISMATCHED: dict[str, tuple[Call, str, str]] = {
    "shape": (
        lambda hvd, tf: hvd.allreduce(tf.ones(2 + hvd.rank()), name="xla shape"),
        "FailedPreconditionError",
        "shapes",
    ),
    "type": (
        lambda hvd, tf: hvd.allreduce(tf.ones(2, [tf.float32, tf.int32][hvd.rank()]), name="xla type"),
        "FailedPreconditionError",
        "data types",
    ),
    "root": (
        lambda hvd, tf: hvd.broadcast(tf.ones(2), hvd.rank(), name="xla root"),
        "FailedPreconditionError",
        "root ranks",
    ),
    "rows": (
        lambda hvd, tf: hvd.allgather(tf.ones([2 + hvd.rank(), 2]), name="xla rows"),
        "InvalidArgumentError",
        "here are 5",
    ),
    "no rows": (
        lambda hvd, tf: hvd.allgather(tf.ones([hvd.rank(), 2]), name="xla no rows"),
        "InvalidArgumentError",
        "here are 1",
    ),
    "rows to exchange": (
        lambda hvd, tf: hvd.alltoall(tf.ones([2 + 2 * hvd.rank(), 2]), name="xla exchange"),
        "InvalidArgumentError",
        "here are 3",
    ),
}


@on_worlds(2)
@pytest.mark.parametrize("case", MISMATCHED)
def test_mismatch(world: Workers, case: str) -> None:
    """On both ranks; the engine goes on."""
    call, kind, part = MISMATCHED[case]
    assert_raised(world.run(_failing, call), kind, part)


def _failing(call: Call, ranks: int = 2) -> Raised | None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    outcome = None
    if hvd.rank() < ranks:
        outcome = error_of(tf.function(lambda: call(hvd, tf), jit_compile=True, autograph=False))
    well = tf.function(lambda: hvd.allreduce(tf.ones(3), op=hvd.Sum), jit_compile=True, autograph=False)
    assert well().numpy().tolist() == [2.0] * 3
    return outcome


ALONE: dict[str, tuple[Call, str, str]] = {
    "unknown set": (
        lambda hvd, tf: hvd.mpi_ops._allreduce(tf.ones(2), process_set=99),
        "InvalidArgumentError",
        "99",
    ),
    "unknown set of a gather": (
        lambda hvd, tf: hvd.allgather(tf.ones(2), process_set=99),
        "InvalidArgumentError",
        "99",
    ),
    "root": (lambda hvd, tf: hvd.broadcast(tf.ones(2), 7), "InvalidArgumentError", "root rank is 7"),
    "scalar allgather": (lambda hvd, tf: hvd.allgather(tf.constant(1.0)), "InvalidArgumentError", "scalar"),
    "no splits": (lambda hvd, tf: hvd.alltoall(tf.ones(5)), "InvalidArgumentError", "can divide"),
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
    "type": (lambda hvd, tf: hvd.allreduce(tf.ones(2, tf.complex64)), "TypeError", "complex64"),
}


@on_worlds(2)
@pytest.mark.parametrize("case", ALONE)
def test_misuse(world: Workers, case: str) -> None:
    """Seen by one rank alone; operations after it still match."""
    call, kind, part = ALONE[case]
    assert_raised(world.run(_failing, call, 1)[:1], kind, part)


def _of_unknown_shape(hvd: Any, tf: Any) -> Any:
    function = tf.function(hvd.allreduce, autograph=False, jit_compile=True)
    return function.get_concrete_function(tf.TensorSpec([None], tf.float32))


REFUSED: dict[str, tuple[Call, str]] = {
    "join": (lambda hvd, tf: tf.identity(hvd.join()), "HorovodJoin"),
    "splits": (lambda hvd, tf: hvd.alltoall(tf.ones(4), [2, 2]), "splits"),
    "shape": (_of_unknown_shape, "(None,)"),
}


@on_worlds(2)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compiled(world: Workers, case: str) -> None:
    """An error that says what to do, when the function is traced."""
    call, part = REFUSED[case]
    assert_raised(world.run(_failing, call), "NotImplementedError", part, "jit_compile=False")


@on_worlds(1)
def test_a_tensorflow_without_such_calls(world: Workers) -> None:
    assert_raised(
        world.run(_without_calls), "NotImplementedError", "HorovodAllreduce", "no such", "jit_compile=False"
    )


def _without_calls() -> Raised | None:
    from horovod import _native

    return _error_with(_native, "add_to_xla_of_tensorflow", lambda: "no such calls")


@on_worlds(1)
def test_on_a_gpu(world: Workers) -> None:
    assert_raised(world.run(_on_a_gpu), "NotImplementedError", "GPU", "jit_compile=False")


def _on_a_gpu() -> Raised | None:
    from horovod.tensorflow import _xla

    return _error_with(_xla, "_device", lambda: "/job:localhost/replica:0/task:0/device:GPU:0")


def _error_with(module: Any, name: str, function: Any) -> Raised | None:
    """Of a compiled reduction, with another function in the module."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    with mock.patch.object(module, name, function):
        return error_of(tf.function(lambda: hvd.allreduce(tf.ones(2)), jit_compile=True, autograph=False))
