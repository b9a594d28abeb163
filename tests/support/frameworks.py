"""How worlds get their frameworks: see ``tests.support.nursery``. The package is not imported here."""

from __future__ import annotations

import os
import warnings


def import_torch() -> None:
    """With what its optimizers load."""
    import torch._dynamo  # noqa: F401


def import_tensorflow() -> None:
    """Without what it says on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what TensorFlow itself imports
        import tensorflow  # noqa: F401


def import_keras() -> None:
    """The Keras that the environment asks for, and what it runs on."""
    # What frameworks say among themselves is their own affair.
    warnings.filterwarnings("ignore", module=r"(keras|tf_keras|tensorflow|torch|jax|flatbuffers)(\.|$)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
            import tf_keras  # noqa: F401
        else:
            import keras  # noqa: F401
