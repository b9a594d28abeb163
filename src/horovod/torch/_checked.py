"""The engine that moves a tensor, for arguments that may be anything: only tensors get to an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from horovod.torch import _routes

if TYPE_CHECKING:
    from horovod import _native
    from horovod.torch._plane import Plane


def engine_for(tensor: torch.Tensor) -> _native.Engine | Plane:
    """The engine that moves ``tensor``."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(_not_a_tensor(tensor))
    if tensor.layout is not torch.strided:
        raise ValueError(_SPARSE)
    return _routes.engine_for(tensor)


def engine_for_group(tensors: Sequence[torch.Tensor]) -> _native.Engine | Plane:
    """The engine that moves all these."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(_not_a_tensor(tensor))
        if tensor.layout is not torch.strided:
            raise ValueError(_SPARSE)
    return _routes.engine_for_group(tensors)


def members(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a group."""
    if isinstance(tensors, torch.Tensor):
        raise TypeError("A group is a list of tensors, not one torch.Tensor.")
    return list(tensors)


_SPARSE = "The tensor is sparse: use hvd.sparse_allreduce_async(), or tensor.to_dense()."


def _not_a_tensor(value: object) -> str:
    return f"The operation needs a torch.Tensor, not {type(value).__name__}."
