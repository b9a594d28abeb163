"""Khorovod: distributed training with five changed lines. Importing this loads no framework."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
