"""Horovod for Keras 3, on TensorFlow or torch, whichever ``KERAS_BACKEND`` says.

::

    import keras
    import horovod.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
    model.compile(optimizer=optimizer, loss=...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

For ``tf.keras``, which may also be ``tf_keras``, there is ``horovod.tensorflow.keras``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import keras as _keras
except ImportError as error:
    raise ImportError(
        "horovod.keras needs Keras 3 and a framework for it; install them with: pip install keras "
        "tensorflow, or: pip install keras torch"
    ) from error

from horovod._core.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horovod._core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod._core.reduction import Adasum, Average, Sum
from horovod._keras import loading, values
from horovod._keras.backends import backend_named
from horovod._keras.layers import local_weights
from horovod._keras.optimizer import create_distributed_optimizer
from horovod.keras import callbacks

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_backend = backend_named(_keras.backend.backend())
Compression = _backend.compression()


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A Keras optimizer like ``optimizer`` whose gradients are reduced over all ranks before it applies them.

    Args:
        optimizer: any Keras optimizer, also a ``LossScaleOptimizer``.
        name: of the new optimizer; by default ``"Distributed"`` before the class's.
        device_dense: the device that reduces tensors, if not theirs (TensorFlow).
        device_sparse: the device that gathers ``tf.IndexedSlices``, if not theirs (TensorFlow).
        compression: as what type gradients travel.
        sparse_as_dense: makes sparse gradients dense before they are reduced.
        gradient_predivide_factor: averages are divided by it before the sum and by ``size / factor`` after.
        op: ``Average`` or ``Sum``.
        num_groups: the old name of ``groups``.
        groups: a number, or lists of variables: the gradients of a group are reduced as one operation.
        backward_passes_per_step: how many steps add up to one that is applied.
        average_aggregated_gradients: divides what adds up by ``backward_passes_per_step``.
        process_set: the ranks to reduce over. Ranks outside step on their own.
        scale_local_gradients: divides gradients of local variables, which are not reduced, by the number of
            ranks.
    """
    return create_distributed_optimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A :func:`DistributedOptimizer` that leaves the weights of ``local_layers`` (one layer, or several) to
    each rank."""
    distributed = create_distributed_optimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for weight in local_weights(local_layers):
        distributed.register_local_var(weight)
    return distributed


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,  # noqa: ARG001
) -> Any:
    """A saved model whose optimizer, with the state that was saved, is a distributed one."""
    return loading.load_model(_keras, filepath, custom_optimizers, custom_objects, compression)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The mean of all ranks' values (or what ``op`` says), as a tensor."""
    return values.allreduce(
        _backend, value, name, average, prescale_factor, postscale_factor, op, compression
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, one after the other."""
    return values.allgather(_backend, value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's value."""
    return values.broadcast(_backend, value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's part of the reduced value."""
    return values.reducescatter(_backend, value, name, op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Gives every rank the root's global variables; in graphs of TensorFlow 1 only."""
    operations = _backend.operations()
    if not hasattr(operations, "broadcast_global_variables"):
        raise RuntimeError(
            "hvd.broadcast_global_variables() is for TensorFlow 1: use "
            "hvd.callbacks.BroadcastGlobalVariablesCallback."
        )
    return operations.broadcast_global_variables(root_rank)


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise AttributeError(
            "horovod.keras.elastic is not there yet: this version cannot change the number of ranks of a job "
            "that runs."
        )
    raise AttributeError(f"module 'horovod.keras' has no attribute {name!r}")
