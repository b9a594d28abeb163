"""Memory for results. Touching fresh pages for the first time costs more than a reduction, so the memory of a
large result that nobody refers to any more is used again for the next one of its size.

At most 64 MiB are kept: larger results always get fresh memory.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

SMALLEST = 1 << 20  # below, allocating is quick
LARGEST = 64 << 20  # of all that is kept


class OutputPool:
    """Lends memory to results, takes it back when the last array that shows it is gone. The GIL guards it."""

    def __init__(self, smallest: int, largest: int) -> None:
        self.kept: list[Array] = []
        """Owners of free memory, the last used at the end."""
        self.lent: dict[int, tuple[weakref.ref[Array], Array]] = {}
        """By the result's id: the result and its memory's owner."""
        self._smallest = smallest
        self._largest = largest
        self._unused = sys.maxsize
        # How many references an owner has, as counted when its only result goes, differs between versions of
        # Python: see it once.
        empty: Array = self._lend(np.empty(smallest, dtype=np.uint8), np.dtype(np.uint8), (smallest,))
        self._seen = 0
        del empty
        self._unused = self._seen
        self.kept.clear()

    def empty_like(self, array: Array) -> Array:
        """An uninitialised array like ``array``, perhaps in memory of an earlier result."""
        if not self._smallest <= array.nbytes <= self._largest or array.dtype.hasobject:
            return np.empty_like(array)
        return self._lend(self._take(array.nbytes), array.dtype, array.shape)

    def _lend(self, owner: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        result: Array = owner.view(dtype).reshape(shape)
        key = id(result)
        self.lent[key] = weakref.ref(result, lambda _: self._give_back(key)), owner
        return result

    def _take(self, nbytes: int) -> Array:
        for index in range(len(self.kept) - 1, -1, -1):
            if self.kept[index].nbytes == nbytes:
                return self.kept.pop(index)
        return np.empty(nbytes, dtype=np.uint8)

    def _give_back(self, key: int) -> None:
        owner = self.lent.pop(key)[1]
        self._seen = sys.getrefcount(owner)
        if self._seen > self._unused:
            return  # a view of the result lives on: the memory is its, and freed with it
        self.kept.append(owner)
        while sum(kept.nbytes for kept in self.kept) > self._largest:
            self.kept.pop(0)


pool = OutputPool(SMALLEST, LARGEST)
empty_like = pool.empty_like
