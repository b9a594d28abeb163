"""Horovod for PyTorch.

::

    import horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Operations match across ranks by name; unnamed ones by the order in which they are called. Functions that end
in ``_`` work in place, those with ``_async`` return a handle for :func:`poll` and :func:`synchronize`.
"""

from __future__ import annotations

from typing import Any

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "horovod.torch needs PyTorch; install it with: pip install torch (for CPUs: --index-url "
        "https://download.pytorch.org/whl/cpu)"
    ) from error

from horovod.torch import mpi_ops
from horovod.torch.compression import Compression
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.mpi_ops import *  # noqa: F403 - all operations, and what every frontend has
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]
__all__ += mpi_ops.__all__


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise AttributeError(
            "horovod.torch.elastic is not there yet: this version cannot change the number of ranks of a job "
            "that runs."
        )
    raise AttributeError(f"module 'horovod.torch' has no attribute {name!r}")
