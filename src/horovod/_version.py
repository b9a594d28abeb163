"""The version, for everybody here; ``horovod.__version__`` for everybody else."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
