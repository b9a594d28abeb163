"""Arrays for results. Large ones show memory of the engine's pool, which is used again when they are gone:
touching fresh pages for the first time costs more than a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._core.runtime import engine

if TYPE_CHECKING:
    import numpy.typing as npt

    from horovod import _native

    Array = npt.NDArray[Any]

LARGE = 1 << 20
"""Bytes; below, allocating is quick."""


def empty_like(array: Array) -> Array:
    """An uninitialised array like ``array``."""
    if array.nbytes < LARGE or array.dtype.hasobject:
        return np.empty_like(array)
    return np.ndarray(array.shape, array.dtype, engine().memory(array.nbytes))  # type: ignore[arg-type]


class Wrap:
    """Makes arrays of results: as the engine asks for, with the types of the inputs."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays

    def __call__(self, memory: _native.Memory, shape: tuple[int, ...], index: int) -> Array:
        return np.ndarray(shape, self._arrays[index].dtype, memory)  # type: ignore[arg-type]
