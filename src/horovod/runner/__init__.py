"""``horovodrun`` and ``horovod.run``. Nothing here imports the engine or a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.runner.api import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    if name == "run":  # what it needs is not free to import, and horovodrun does not need it
        from horovod.runner import api

        return api.run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
