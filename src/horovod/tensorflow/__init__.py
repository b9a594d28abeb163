"""Horovod for TensorFlow."""

from __future__ import annotations

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "horovod.tensorflow needs TensorFlow; install it with: pip install tensorflow"
    ) from error

from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import *  # noqa: F403

__all__ = ["Compression"]
__all__ += mpi_ops.__all__
