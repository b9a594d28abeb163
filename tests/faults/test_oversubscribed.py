"""More ranks than cores, and every core busy with something else: the job comes to its end, and is right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.chaos.judge import judge
from tests.support.chaos.nursery import Nursery
from tests.support.chaos.script import OPERATIONS, Script
from tests.support.chaos.stage import play
from tests.support.stress import HOG


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """One process on every core that does nothing but compute."""
    hogs = [subprocess.Popen([sys.executable, "-S", "-c", HOG]) for _ in os.sched_getaffinity(0)]
    yield
    for hog in hogs:
        assert hog.poll() is None
        hog.kill()
        hog.wait()


@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize("plane", ["shm", "tcp"])
@pytest.mark.parametrize("size", [4, 8])
def test_many_ranks_on_busy_cores(nursery: Nursery, tmp_path: Path, size: int, plane: str) -> None:
    script = Script(size, plane, ("init", *OPERATIONS, "large", "barrier", "shutdown"), ())
    outcome = play(nursery, script, tmp_path / "job")
    assert judge(script, outcome) == []
    for story in outcome.stories.values():
        assert [e["operation"] for e in story if e["event"] == "right"] == list(script.operations)
