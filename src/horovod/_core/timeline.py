"""The timeline of a job: a file that shows what every rank did when, for Perfetto and ``chrome://tracing``.

Rank 0 writes it; the others send their records there by themselves. The native engine does the work, this
module has the rules: ``HOROVOD_TIMELINE`` must have been set at ``init()``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from horovod._config import DYNAMIC, Settings
from horovod._core import runtime
from horovod._core.log import logger

if TYPE_CHECKING:
    from horovod import _native

__all__ = ["start_from_settings", "start_timeline", "stop_timeline"]


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Records a timeline in ``file_path`` from now on; one that is being recorded ends first.

    Call it on rank 0; on the others it does nothing. ``HOROVOD_TIMELINE`` must have been set at ``init()``:
    ``DYNAMIC`` if nothing shall be recorded before this call. ``mark_cycles`` also shows when the coordinator
    looked for tensors that all ranks have.
    """
    running = runtime.current()
    path = os.fspath(file_path)
    if not running.settings.timeline:
        raise ValueError(
            f"start_timeline() needs HOROVOD_TIMELINE to be set when init() is called. Set it to {DYNAMIC} "
            f"on every rank: horovodrun --timeline-filename {DYNAMIC} ..."
        )
    if not path:
        raise ValueError("start_timeline() needs the path of a file; file_path is empty.")
    if running.identity.rank == 0:
        running.engine.stop_timeline()
        running.engine.start_timeline(path, bool(mark_cycles))


def stop_timeline() -> None:
    """Ends the timeline and completes its file. Does nothing if there is none, or on ranks other than 0."""
    running = runtime.current()
    if running.identity.rank == 0 and not running.engine.stop_timeline():
        logger.warning("stop_timeline(): no timeline is being recorded")


def start_from_settings(settings: Settings, rank: int, engine: _native.Engine) -> None:
    """Records a timeline if the environment names a file; if that cannot be written, the job goes on."""
    if rank != 0 or settings.timeline in ("", DYNAMIC):
        return
    try:
        engine.start_timeline(settings.timeline, settings.timeline_mark_cycles)
    except ValueError as error:
        logger.error("HOROVOD_TIMELINE: %s The job goes on without a timeline.", error)
