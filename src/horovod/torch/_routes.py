"""Which engine an operation goes to: by the device of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from horovod._core.runtime import engine

if TYPE_CHECKING:
    import torch

    from horovod import _native


def engine_for(tensor: torch.Tensor) -> _native.Engine:  # noqa: ARG001
    """The engine that moves ``tensor``."""
    return engine()


def engine_for_group(tensors: Sequence[torch.Tensor]) -> _native.Engine:  # noqa: ARG001
    """The engine that moves all these."""
    return engine()
