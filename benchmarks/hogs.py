"""Compute-bound processes that make the machine busy while something else is measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

_HOG = """
import os, sys
if sys.argv[2] != "any":
    os.sched_setaffinity(0, {int(sys.argv[2])})
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""


@contextlib.contextmanager
def busy_cores(pinned: bool) -> Iterator[None]:
    """One compute process for every core that we may use: pinned to it, or free to move."""
    hogs: list[subprocess.Popen[bytes]] = []
    try:
        for core in sorted(os.sched_getaffinity(0)):
            where = str(core) if pinned else "any"
            hogs.append(subprocess.Popen([sys.executable, "-c", _HOG, str(os.getpid()), where]))
        time.sleep(0.2)
        yield
    finally:
        for hog in hogs:
            hog.kill()
        for hog in hogs:
            hog.wait(timeout=10)
