"""Waiting for operations: handles, barrier, join."""

from __future__ import annotations

from typing import Any

import torch

from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.runtime import engine
from horovod.torch._routes import prepare_to_join

__all__ = ["barrier", "join", "poll", "synchronize"]


def poll(handle: int) -> bool:
    """Whether the operation is done, so that :func:`synchronize` would not wait."""
    return engine().poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for the operation and returns its result; ``None`` for a handle that was synchronized already.

    The result of a group is a tuple, that of an alltoall the tensor and the received splits.
    """
    result = engine().synchronize(handle)
    if type(result) is list:
        return tuple(result)
    if type(result) is tuple:
        return result[0], torch.tensor(result[1], dtype=torch.int32)
    return result


def join(device: int = -1) -> int:
    """This rank has no more data: it takes part in the others' allreduces until they have joined too.

    It contributes zeros to ``Sum`` and ``Average`` (which still divides by the number of all ranks), and
    nothing to ``Min``, ``Max`` and ``Product``. Other operations than allreduce fail while somebody has
    joined. Returns the rank that joined last, the same everywhere. ``device`` is the GPU on which this rank
    takes part, if the others' tensors are on GPUs; the current one if it is not given.
    """
    prepare_to_join(device)
    return engine().join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it."""
    engine().barrier(process_set.process_set_id)
