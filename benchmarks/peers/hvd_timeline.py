"""Khorovod while it records a timeline: what HOROVOD_TIMELINE costs, beside `hvd` without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.peers.base import Command, Job
from benchmarks.peers.hvd import Hvd

FILE = "timeline.json"


class HvdTimeline(Hvd):
    """`hvd` with HOROVOD_TIMELINE; the file lies in the world's directory and goes with it."""

    name = "hvd-timeline"
    kinds = frozenset({"timeline"})

    def launch(self, job: Job) -> list[Command]:
        recording = {"HOROVOD_TIMELINE": str(Path(job.directory) / FILE)}
        return [replace(command, env=command.env | recording) for command in super().launch(job)]

    def connect(self, directory: str) -> None:
        super().connect(directory)
        if self.rank == 0 and not (Path(directory) / FILE).is_file():  # the job would go on without it
            raise RuntimeError(f"HOROVOD_TIMELINE is set, but there is no {FILE} in {directory}")
