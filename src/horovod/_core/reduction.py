"""The reduction constants, and which one a call means."""

from __future__ import annotations

import warnings

__all__ = ["AVAILABLE", "Adasum", "Average", "Max", "Min", "Product", "Sum", "reduction_of"]

# Plain numbers, as scripts know them; the native ReduceOp has the same.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_NAMES = {Average: "Average", Sum: "Sum", Adasum: "Adasum", Min: "Min", Max: "Max", Product: "Product"}
AVAILABLE = (Average, Sum)


def reduction_of(op: int | None, average: bool | None) -> int:
    """The reduction that ``op`` or the old ``average`` asks for; ``Average`` if neither is given."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`.", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    if op is None:
        return Average
    if op not in _NAMES:
        raise ValueError(f"op is {op!r}; use one of {', '.join(f'hvd.{name}' for name in _NAMES.values())}.")
    if op not in AVAILABLE:
        raise NotImplementedError(
            f"hvd.{_NAMES[op]} is not available in this version; use hvd.Average or hvd.Sum."
        )
    return op
