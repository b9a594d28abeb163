"""A job that is killed at a random moment leaves nothing: no process, region, socket or file.

``python -m tests.support.chaos --restarts 1000`` does the same a thousand times.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest
from jobs import until
from tests.support.chaos.nursery import Nursery
from tests.support.chaos.restarts import OPERATIONS, VICTIMS, kill_once
from tests.support.chaos.script import Script
from tests.support.chaos.stage import begin, what_is_left

JOB = f"the same job each time that process {os.getpid()} starts one"  # others may test beside it


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_job_leaves_nothing(nursery: Nursery, tmp_path: Path, victim: str, number: int) -> None:
    seed = f"{victim} {number} {random.random()}"
    assert kill_once(nursery, victim, random.Random(seed), tmp_path / "job", JOB) == [], seed


@pytest.mark.parametrize(
    ("plane", "kinds"), [("shm", ["a region", "process", "socket"]), ("tcp", ["process", "socket"])]
)
def test_what_a_job_holds_is_seen(nursery: Nursery, tmp_path: Path, plane: str, kinds: list[str]) -> None:
    """The search finds, while a job lives, everything that must be gone when it is dead."""
    script = Script(2, plane, OPERATIONS, ())
    begin(nursery, script, tmp_path / "job", JOB, "50")
    stories = [tmp_path / "job" / f"story.{rank}" for rank in range(2)]
    until(lambda: all(path.exists() and "right" in path.read_text() for path in stories), "the first results")
    found = what_is_left(nursery, script, tmp_path / "job", patience=0)
    assert sorted({re.sub(r" (mapped|\d|\S*-).*", "", what) for what in found}) == kinds
