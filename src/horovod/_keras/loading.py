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
    if getattr(optimizer, "built", False) and not getattr(optimizer, "_trainable_variables", True):
        _build_again(optimizer, model.trainable_variables, filepath)
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


def _build_again(optimizer: Any, variables: Sequence[Any], filepath: Any) -> None:
    """Of an ``.h5`` file Keras 3 builds the optimizer for no variables at all, and drops its state."""
    import h5py  # as Keras has just done

    optimizer.built = False
    optimizer.build(variables)
    with h5py.File(filepath) as file:
        group = file["optimizer_weights"]
        saved = [group[name][()] for name in group.attrs["weight_names"]]
    for variable, value in zip(optimizer.variables, saved, strict=True):
        variable.assign(value)
