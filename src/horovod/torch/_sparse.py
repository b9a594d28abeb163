"""Allreduce of sparse tensors: the ranks' entries, gathered."""

from __future__ import annotations

from collections.abc import Callable

import torch

from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import Average, Sum
from horovod.torch._asynchronous import allgather_async
from horovod.torch._handles import synchronize
from horovod.torch._waiting import size_of

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts to sum or average sparse tensors. What it returns waits, and gives the sparse result.

    Entries of the same index from several ranks stay apart: ``coalesce()`` adds them up.
    """
    if not tensor.is_sparse:
        raise ValueError(
            "sparse_allreduce_async needs a sparse (COO) tensor; use allreduce_async for others."
        )
    if op not in (Average, Sum):
        raise ValueError(
            "Sparse tensors can be reduced by hvd.Sum and hvd.Average only; see sparse_as_dense."
        )
    # Entries are rows, so that they can be gathered one after the other.
    indices = allgather_async(tensor._indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values().contiguous(), f"{name}.values", process_set)

    def finish() -> torch.Tensor:
        all_indices, all_values = synchronize(indices), synchronize(values)
        if op == Average:
            all_values = all_values / size_of(process_set.process_set_id or 0)
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape, check_invariants=False)

    return finish
