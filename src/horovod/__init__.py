"""Khorovod: distributed training with five changed lines. Importing this loads no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._version import __version__

if TYPE_CHECKING:
    from horovod.runner import run

__all__ = ["__version__", "run"]


def __getattr__(name: str) -> Any:
    if name == "run":
        from horovod import runner

        return runner.run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
