"""Bringing all ranks to the same state: variables, any object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod._core import objects
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.mpi_ops import broadcast, broadcast_
from horovod.tensorflow.util import plain, unconverted, unique_name

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

_AS_BYTES = (tf.uint32, tf.uint64, tf.complex64, tf.complex128)
"""Types that the engine has no names for. Of these only the bytes matter here."""


@unconverted
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Gives every rank the root's values of ``variables``, of TensorFlow or Keras.

    They match by their places in the list, so all ranks must give them in the same order. In a graph of
    TensorFlow 1 the result is the operation to run. ``inplace`` fills the variables' own memory.
    """
    targets = [plain(variable) for variable in variables]
    for target in targets:
        if not hasattr(target, "assign"):
            raise ValueError(
                f"broadcast_variables() takes variables, not {type(target).__name__}. For other things there "
                "are hvd.broadcast() and hvd.broadcast_object()."
            )
    label = unique_name("broadcast_variables")
    if not targets:
        return tf.group()
    if inplace:
        return tf.group(*broadcast_(targets, root_rank, name=label, process_set=process_set))
    values = [
        _broadcast_value(target, root_rank, f"{label}_{number}", process_set)
        for number, target in enumerate(targets)
    ]
    # In a graph all values are on their way before the first is assigned.
    return tf.group(*[target.assign(value) for target, value in zip(targets, values, strict=True)])


def _broadcast_value(variable: Any, root_rank: int, name: str, process_set: ProcessSet) -> tf.Tensor:
    value = tf.convert_to_tensor(variable)
    if value.dtype not in _AS_BYTES:
        return broadcast(value, root_rank, name=name, process_set=process_set)
    taken = broadcast(tf.bitcast(value, tf.uint8), root_rank, name=name, process_set=process_set)
    return tf.bitcast(taken, value.dtype)


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives every rank the root's global variables; for graphs of TensorFlow 1."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution: there are no global "
            "variables. Use hvd.broadcast_variables(model.variables, root_rank=...) instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives every rank the root's global variables when a session has been created.

    For ``tf.compat.v1.train.MonitoredTrainingSession``: all workers start from the same weights, whether they
    are random or from a checkpoint.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Adds the operation to the graph."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        """Runs it."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,  # noqa: ARG001
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's ``obj``, on every rank. No session is needed, in no mode."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,  # noqa: ARG001
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """The function ``obj -> the root's obj``."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,  # noqa: ARG001
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """The objects of all ranks, in the order of ranks. No session is needed, in no mode."""
    return objects.allgather_object(obj, name, process_set)
