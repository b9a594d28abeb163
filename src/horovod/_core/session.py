"""The beginning and the end of a world, with all that belongs to it: process sets and the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod._core import process_sets as registry
from horovod._core import runtime, timeline
from horovod._core.process_sets import ProcessSet
from horovod.exceptions import InitError

__all__ = ["init", "shutdown"]


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Joins the world that the environment describes; does nothing if that has happened already.

    ``process_sets`` registers these sets from the start, the same on every rank; ``"dynamic"`` allows to add
    and remove sets later. A second call only looks up the given sets. ``comm`` may be a list of all ranks.
    """
    dynamic = isinstance(process_sets, str)
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f"process_sets is {process_sets!r}; it may be a list of ProcessSet or 'dynamic'.")
    static = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    fresh = runtime.init(comm, dynamic)
    running = runtime.current()
    size = running.identity.size
    if not fresh:
        registry.map_to_registered(running.engine, static, size)
        return
    registry.open_registry(size)
    timeline.start_from_settings(running.settings, running.identity.rank, running.engine)
    if static:
        try:
            registry.register_static(running.engine, static, size)
        except InitError:
            shutdown()
            raise


def shutdown() -> None:
    """Leaves the world. Operations that are pending, here or waiting for this rank elsewhere, fail."""
    runtime.shutdown()
    registry.close_registry()
