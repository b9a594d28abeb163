"""Tensors for results. Large ones show memory of the engine's pool, which is used again when they are gone:
touching fresh pages for the first time costs more than a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from horovod._core.runtime import engine

if TYPE_CHECKING:
    from horovod import _native

LARGE = 1 << 20
"""Bytes; below, allocating is quick."""


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """An uninitialised tensor like ``tensor``."""
    if tensor.nbytes < LARGE or not tensor.is_cpu:
        return torch.empty_like(tensor, requires_grad=False)
    return on(engine().memory(tensor.nbytes), tensor.shape, tensor.dtype)


def on(memory: _native.Memory, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that shows ``memory`` and keeps it."""
    if len(memory) == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class Wrap:
    """Makes tensors of results: as the engine asks for, with the types of the inputs."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors

    def __call__(self, memory: _native.Memory, shape: tuple[int, ...], index: int) -> torch.Tensor:
        return on(memory, shape, self._tensors[index].dtype)
