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

__all__ = ["averaged", "broadcast", "number", "to_numpy"]

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
            variable.assign(target.view(array.dtype).reshape(array.shape))


def averaged(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The means of all ranks' metrics, which must have the same names everywhere."""
    own = {name: number(metrics[name]) for name in sorted(metrics)}
    everybody = allgather_object(own, name="MetricAverageCallback")
    for rank, other in enumerate(everybody):
        if list(other) != list(everybody[0]):
            raise MismatchError(
                f"MetricAverageCallback: the ranks have different metrics: rank 0 {', '.join(everybody[0])}; "
                f"rank {rank} {', '.join(other)}. Give all workers the same metrics and validation data."
            )
    return {name: sum(one[name] for one in everybody) / len(everybody) for name in own}


def to_numpy(value: Any) -> Any:
    """The value of a variable or tensor of any framework."""
    value = getattr(value, "value", value) if not callable(getattr(value, "value", None)) else value
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            return value.contiguous().view(_torch_int16()).numpy()
        return value.numpy()
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def number(value: Any) -> float:
    """A metric or hyperparameter as a plain number."""
    return float(np.asarray(to_numpy(value)))


def _torch_int16() -> Any:
    import torch

    return torch.int16
