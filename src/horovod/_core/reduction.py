"""The reduction constants, and which one a call means."""

from __future__ import annotations

import warnings

from horovod._core import runtime

__all__ = ["SIMPLE", "Adasum", "Average", "Max", "Min", "Product", "Sum", "known", "reduction_of"]

# Plain numbers, as scripts know them; the native ReduceOp has the same.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_NAMES = {Average: "Average", Sum: "Sum", Adasum: "Adasum", Min: "Min", Max: "Max", Product: "Product"}
SIMPLE = (Average, Sum, Min, Max, Product)
"""Reductions that need no further look: any number of ranks, any process set."""


def reduction_of(op: int | None, average: bool | None = None, process_set: int | None = 0) -> int:
    """The reduction that ``op`` or the old ``average`` asks for; ``Average`` if neither is given."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`.", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    if op is None:
        return Average
    if known(op) == Adasum:
        _check_adasum(process_set)
    return op


def known(op: int) -> int:
    """``op``, if there is such a reduction."""
    if op not in _NAMES:
        raise ValueError(f"op is {op!r}; use one of {', '.join(f'hvd.{name}' for name in _NAMES.values())}.")
    return op


def _check_adasum(process_set: int | None) -> None:
    if process_set != 0:
        raise NotImplementedError("hvd.Adasum works with all ranks only, not with a process set.")
    size = runtime.identity().size
    if size & (size - 1):
        raise NotImplementedError(
            f"hvd.Adasum combines ranks in pairs and needs 1, 2, 4, 8, ... of them; this job has {size}."
        )
