"""Layers that belong to one rank."""

from __future__ import annotations

from typing import Any

__all__ = ["local_weights"]


def local_weights(layers: Any) -> list[Any]:
    """The trainable weights of one or several Keras layers."""
    if layers is None:
        return []
    several = list(layers) if isinstance(layers, list | tuple | set) else [layers]
    for layer in several:
        if not hasattr(layer, "trainable_weights") or not hasattr(layer, "get_config"):
            raise ValueError(
                f"All local layers must be of type tf.keras.layers.Layer, not {type(layer).__name__}."
            )
        if not getattr(layer, "built", True):
            raise ValueError(
                f"The local layer {layer.name!r} has no weights yet: build the model first (by "
                "model.build(input_shape), or by calling it on a batch)."
            )
    return [weight for layer in several for weight in layer.trainable_weights]
