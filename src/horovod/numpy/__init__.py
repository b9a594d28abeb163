"""Horovod for NumPy arrays: the reference frontend.

::

    import horovod.numpy as hvd

    hvd.init()
    gradient = hvd.allreduce(gradient, name="w")

Operations match across ranks by name; unnamed ones by the order in which they are called. Functions that end
in ``_`` work in place, those with ``_async`` return a handle for :func:`poll` and :func:`synchronize`.
"""

from __future__ import annotations

try:
    import numpy as np
except ImportError as error:
    raise ImportError("horovod.numpy needs NumPy; install it with: pip install numpy") from error

from typing import Any

from horovod._core.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
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
from horovod._core.compression import Compression
from horovod._core.objects import allgather_object, broadcast_object
from horovod._core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod._core.reduction import Adasum, Average, Max, Min, Product, Sum
from horovod._core.runtime import engine
from horovod.exceptions import HorovodInternalError
from horovod.numpy._moving import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from horovod.numpy._reducing import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "ccl_built",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it."""
    engine().barrier(process_set.process_set_id)


def join() -> int:
    """This rank has no more data: it takes part in the others' allreduces until they have joined too.

    It contributes zeros to ``Sum`` and ``Average`` (which still divides by the number of all ranks), and
    nothing to ``Min``, ``Max`` and ``Product``. Other operations than allreduce fail while somebody has
    joined. Returns the rank that joined last, the same everywhere.
    """
    return engine().join()


def poll(handle: int) -> bool:
    """Whether the operation is done, so that :func:`synchronize` would not wait."""
    return engine().poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for the operation and returns its result; ``None`` for a handle that was synchronized already.

    The result of a group is a list, that of an alltoall the tensor and the received splits.
    """
    result = engine().synchronize(handle)
    if type(result) is tuple:
        return result[0], np.array(result[1], np.int32)
    return result


def counters() -> dict[str, int]:
    """What the engine has done since :func:`init`: totals of operations, plans, bytes and nanoseconds."""
    return engine().counters()
