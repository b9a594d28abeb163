"""What callbacks exchange between ranks: variables and metrics, of any Keras on any framework.

By way of NumPy arrays and the engine: it happens once in a training, or once per epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from horovod._core.agreement import agree
from horovod._core.objects import allgather_object
from horovod._core.runtime import engine
from horovod.exceptions import MismatchError

__all__ = ["averaged", "broadcast", "is_on_torch", "number", "to_numpy"]

_KNOWN = frozenset(
    ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
)
"""The types that the engine has names for. Of all others only the bytes matter here."""


def broadcast(variables: Sequence[Any], root_rank: int, call: str) -> None:
    """Gives every rank the root's values of ``variables``, which must be alike everywhere."""
    arrays = [np.asarray(to_numpy(variable), order="C") for variable in variables]
    agree(
        [
            (f"variable {place} of {len(arrays)}", f"{array.dtype} {list(array.shape)}")
            for place, array in enumerate(arrays)
        ],
        call,
    )
    running = engine()
    started = []
    for place, array in enumerate(arrays):
        source = array if array.dtype.name in _KNOWN else array.reshape(-1).view(np.uint8)
        target = np.empty_like(source)
        handle = running.broadcast_async(f"{call}.{place}", source, target, root_rank, 0)
        started.append((target, handle))
    for variable, array, (target, handle) in zip(variables, arrays, started, strict=True):
        running.synchronize(handle)
        if running.rank != root_rank:
            variable.assign(_value(variable, target.view(array.dtype).reshape(array.shape)))


def averaged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The means of all ranks' metrics, which must have the same names and shapes everywhere."""
    own = {name: _metric(name, metrics[name]) for name in sorted(metrics)}
    everybody = allgather_object(own, name="MetricAverageCallback")
    first = _described(everybody[0])
    for rank, other in enumerate(everybody):
        if _described(other) != first:
            raise MismatchError(
                f"MetricAverageCallback: the ranks have different metrics: rank 0 {first}; "
                f"rank {rank} {_described(other)}. Give all workers the same metrics and validation data."
            )
    return {name: sum(one[name] for one in everybody) / len(everybody) for name in own}


def _metric(name: str, value: Any) -> Any:
    """A number, or an array of them: one for each class, say."""
    try:
        values = np.asarray(_in_float(value), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"MetricAverageCallback: the metric {name!r} is {value!r}, not a number or an array of numbers, "
            "and cannot be averaged. Leave it out of the logs, or put this callback before what adds it."
        ) from error
    return float(values) if values.ndim == 0 else values


def _described(metrics: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {list(value.shape)}" if isinstance(value, np.ndarray) else name
        for name, value in metrics.items()
    )


def to_numpy(value: Any) -> Any:
    """The value of a variable or tensor of any framework."""
    value = _inside(value)
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu()
        if _is_bfloat16(value):  # NumPy has no such type: its bits
            return value.contiguous().view(_torch().int16).numpy()
        return value.numpy()
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def number(value: Any) -> float:
    """A hyperparameter as a plain number."""
    return float(np.asarray(_in_float(value)))


def is_on_torch(variable: Any) -> bool:
    """Whether it is a variable of Keras on torch."""
    return hasattr(_inside(variable), "detach")


def _inside(value: Any) -> Any:
    """The framework's own variable or tensor in one of Keras."""
    return value if callable(getattr(value, "value", None)) else getattr(value, "value", value)


def _value(variable: Any, array: Any) -> Any:
    """What to assign to the variable to give it a value that :func:`to_numpy` made of one like it."""
    inside = _inside(variable)
    if hasattr(inside, "detach") and _is_bfloat16(inside):
        return _torch().from_numpy(array).view(_torch().bfloat16)
    return array


def _in_float(value: Any) -> Any:
    """As NumPy array whose values are those of the tensor, not its bits."""
    inside = _inside(value)
    return to_numpy(inside.float() if hasattr(inside, "detach") and _is_bfloat16(inside) else inside)


def _is_bfloat16(tensor: Any) -> bool:
    return str(tensor.dtype) == "torch.bfloat16"


def _torch() -> Any:
    import torch

    return torch
