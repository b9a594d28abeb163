"""The runtime says what it was asked to say, and nothing by default."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOROVODRUN = str(Path(sys.executable).parent / "horovodrun")
SCRIPT = "import horovod.numpy as hvd; hvd.init()"


def messages(*options: str, plane: str = "auto") -> list[str]:
    done = subprocess.run(
        [HOROVODRUN, "-np", "2", *options, sys.executable, "-c", SCRIPT],
        env={"PATH": "/usr/bin:/bin", "HOROVOD_CPU_OPERATIONS": plane},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr.splitlines()


def test_silent_by_default() -> None:
    assert messages() == []


@pytest.mark.parametrize("plane", ["shm", "tcp"])
def test_info_names_the_plane(plane: str) -> None:
    lines = messages("--log-level", "info", "--log-without-timestamp", plane=plane)
    assert sorted(lines) == [
        f"[{rank}]<stderr>:horovod INFO [rank {rank}]: init() number 1 of horovodrun: plane {plane}, 2 ranks"
        for rank in range(2)
    ]


def test_time_comes_first_unless_hidden() -> None:
    assert all(line.split(":", 1)[1].startswith("20") for line in messages("--log-level", "info"))
