"""Variables that are changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod._core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import _raw

__all__ = ["broadcast_"]


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives the variables the root's values, and returns these."""
    given = list(variables)
    kinds = {_is_resource(variable) for variable in given}
    if len(kinds) > 1:
        raise ValueError(
            "broadcast_ takes resource variables, or reference variables of TensorFlow 1, not both at once."
        )
    updated = []
    for number, variable in enumerate(given):
        part = None if name is None else f"{name}.{number}"
        value = _raw.broadcast(tf.convert_to_tensor(variable), root_rank, part, process_set=process_set)
        assigned = variable.assign(value)
        updated.append(value if tf.executing_eagerly() else tf.identity(assigned))
    return updated


def _is_resource(variable: Any) -> bool:
    handle = getattr(variable, "handle", None)
    return handle is not None and handle.dtype == tf.resource
