"""``load_model``: a saved model, ready to go on training on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod._core.process_sets import global_process_set
from horovod._core.reduction import Average
from horovod._keras.optimizer import Work, convert, is_distributed

__all__ = ["load_model"]


def load_model(
    keras: Any,
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: dict[str, Any] | None,
    compression: Any,
) -> Any:
    """Loads by Keras, and makes the model's optimizer a distributed one where it is: its state stays."""
    objects = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects or None)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or is_distributed(optimizer):
        return model
    work = Work.of(
        keras,
        op=Average,
        compression=compression,
        predivide=1.0,
        sparse_as_dense=False,
        groups=None,
        process_set=global_process_set,
        device_dense="",
        device_sparse="",
        scale_local_gradients=True,
    )
    convert(keras, optimizer, work)
    return model
