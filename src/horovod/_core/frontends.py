"""How one frontend reaches another without importing it: by name, when it is needed.

Keras runs on several frameworks; which one, is known when a program runs.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["frontend"]


def frontend(name: str) -> Any:
    """The module ``horovod.<name>``; ``ImportError``, with advice, if its framework is not installed."""
    return importlib.import_module(f"horovod.{name}")
