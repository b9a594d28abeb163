"""Khorovod with and without a timeline, in turn in the same world: what recording one costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.peers.base import Command, Job, Recording
from benchmarks.peers.hvd import Hvd

FILE = "timeline.json"
SETTING = "DYNAMIC"  # records nothing before start_timeline()


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

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._hvd.start_timeline(self._file)
        yield
        self._hvd.stop_timeline()
        if self.rank == 0 and "ALLREDUCE" not in self._file.read_text():
            raise RuntimeError(f"No allreduce was recorded in {self._file}")
