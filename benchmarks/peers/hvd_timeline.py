"""Khorovod with and without a timeline, in turn in the same world: what recording one costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.base import Command, Job, Recording
from benchmarks.peers.hvd import Hvd

FILE = "timeline.json"
SETTING = "DYNAMIC"  # records nothing before start_timeline()


@contextmanager
def recorded(hvd: Any, file: Path) -> Iterator[None]:
    """Records a timeline of what is done meanwhile, and sees that there is something in it."""
    hvd.start_timeline(file)
    yield
    hvd.stop_timeline()
    if hvd.rank() == 0 and "ALLREDUCE" not in file.read_text():
        raise RuntimeError(f"No allreduce was recorded in {file}")


class HvdTimeline(Hvd, Recording):
    """`hvd` that may be asked to record; the file lies in the world's directory and goes with it."""

    name = "hvd-timeline"
    kinds = frozenset({"timeline"})

    def launch(self, job: Job) -> list[Command]:
        setting = {"HOROVOD_TIMELINE": SETTING}
        return [replace(command, env=command.env | setting) for command in super().launch(job)]

    def connect(self, directory: str) -> None:
        super().connect(directory)
        self._file = Path(directory) / FILE

    def recording(self) -> AbstractContextManager[None]:
        return recorded(self._hvd, self._file)
