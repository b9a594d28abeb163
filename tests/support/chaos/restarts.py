"""The same job killed at a random moment and started again: what is left of it?"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

from tests.support.chaos.nursery import Nursery
from tests.support.chaos.script import Script
from tests.support.chaos.stage import await_end, begin, what_is_left
from tests.support.chaos.story import read

VICTIMS = ("one", "all", "launcher")
"""Who is killed: a rank, all of them at once, or horovodrun."""

OPERATIONS = ("init", *("small", "large", "many", "allgather") * 500, "shutdown")
"""More than can be done before the end comes."""

START_TIMEOUT = "5"
"""Soon: a rank may be killed before the others have seen it."""


def kill_once(nursery: Nursery, victim: str, rng: random.Random, directory: Path, job: str) -> list[str]:
    """Starts the job, kills, waits for the end of all; complaints."""
    launcher = "horovodrun" if victim == "launcher" else "none"
    script = Script(rng.choice((2, 3)), rng.choice(("shm", "tcp")), OPERATIONS, (), launcher)
    born = begin(nursery, script, directory, job, START_TIMEOUT)
    # Ranks that horovodrun starts have much to import first.
    time.sleep(rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 0.3))))
    if victim == "launcher" and rng.random() < 0.7:
        _await_story(script, directory)
        time.sleep(rng.uniform(0, 0.2))
    chosen = rng.sample(sorted(born.values()), 1) if victim == "one" else born.values()
    for pid in chosen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    hung = await_end(nursery, born, directory)
    killed = sum(nursery.ends().get(pid) == -signal.SIGKILL for pid in chosen)
    complaints = [f"hangs: {what}" for what in hung]
    complaints += [] if killed == len(chosen) else ["nobody was killed"]
    complaints += [f"left behind: {what}" for what in what_is_left(nursery, script, directory)]
    nursery.clear()
    return [f"{script.size} ranks, {script.plane}, {victim} killed: {complaint}" for complaint in complaints]


def _await_story(script: Script, directory: Path) -> None:
    end = time.monotonic() + 20
    while not all(read(directory / f"story.{rank}") for rank in range(script.size)):
        if time.monotonic() > end:
            return
        time.sleep(0.01)
