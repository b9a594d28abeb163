"""The program that every rank of a scripted job runs: ``python -m tests.support.chaos.rank DIRECTORY``.

It goes through the script's steps, commits its own faults, and writes its story as it goes: a line of JSON
for every event, so that nothing is lost when it dies.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import horovod.numpy as hvd
from horovod.exceptions import HorovodInternalError, InitError
from tests.support.chaos import deeds, operations, remains
from tests.support.chaos.script import FAILED, Fault, Script
from tests.support.chaos.story import Story


def main(directory: str) -> None:
    """Plays this rank's part; the name of the job and the rank are in the environment."""
    here = Path(directory)
    rank = int(os.environ["HOROVOD_RANK"])
    with open(here / f"stacks.{rank}", "wb") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks)
        story = Story(here / f"story.{rank}")
        part = _Part(Script.load(here / "script.json"), rank, story)
        story.tell(
            "start",
            pid=os.getpid(),
            host=os.environ.get("HOROVOD_HOSTNAME"),
            job=os.environ["HOROVOD_JOB_ID"],
        )
        story.tell("before", **resources())
        with contextlib.suppress(deeds.Leave):
            part.play()
        hvd.shutdown()
        story.tell("after", **resources())
    if part.failed:
        sys.exit(FAILED)


class _Part:
    """What one rank does."""

    def __init__(self, script: Script, rank: int, story: Story) -> None:
        self.script, self.rank, self.story = script, rank, story
        self.failed = False
        self._pause = 0.0

    def play(self) -> None:
        """All steps, or those until an error."""
        for number, operation in enumerate(self.script.operations):
            time.sleep(self._pause)
            try:
                self._step(number, operation)
            except operations.WrongResult as error:
                self.story.tell("wrong", step=number, operation=operation, message=str(error))
            except (HorovodInternalError, InitError) as error:
                self.failed = True
                kind = "init" if isinstance(error, InitError) else "internal"
                self.story.tell("error", step=number, operation=operation, kind=kind, message=str(error))
                return
            else:
                self.story.tell("right", step=number, operation=operation)
        self.story.tell("end")

    def _step(self, number: int, operation: str) -> None:
        faults = self.script.of(self.rank, number)
        for fault in (fault for fault in faults if fault.moment == "before"):
            deeds.commit(fault, self._record)
        middle = [fault for fault in faults if fault.moment == "during"]
        threads = [deeds.commit_soon(f, self._record) for f in middle if f.kind in deeds.ON_THREADS]
        try:
            self._operation(number, operation, [f for f in middle if f.kind not in deeds.ON_THREADS])
        finally:
            for thread in threads:
                thread.join()

    def _operation(self, number: int, operation: str, faults: list[Fault]) -> None:
        if operation == "init":
            operations.join_world(self.script.size)
            self.story.tell("world", regions=sorted(remains.regions()), sockets=remains.own_sockets())
        finish = None
        if operation not in ("init", "shutdown"):
            finish = operations.start(operation, self.rank, self.script.size, number)
        for fault in faults:
            deeds.commit(fault, self._record)
        if finish is not None:
            finish()
        if operation == "shutdown":
            hvd.shutdown()

    def _record(self, fault: Fault) -> None:
        self.story.tell("fired", step=fault.step, kind=fault.kind)
        if fault.kind == "slow":
            self._pause = min(0.05, fault.seconds)


def resources() -> dict[str, Any]:
    """What this process holds: descriptors, threads, mapped regions."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "regions": len(remains.regions()),
    }


if __name__ == "__main__":
    main(sys.argv[1])
