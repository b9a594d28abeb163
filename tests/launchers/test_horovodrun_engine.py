"""horovodrun with ranks that use the engine: whom the report blames, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starters import Launcher, until

COMMAND = [sys.executable, "-m", "horovod.runner.cli", "-np"]

TRAIN = """
import os, sys, time
import numpy as np
import horovod.numpy as hvd
from horovod._core import runtime

here = os.environ["TEST_DIR"]
def flag(name, text=""):
    with open(f"{here}/{name}.new", "w") as file: file.write(text)
    os.rename(f"{here}/{name}.new", f"{here}/{name}")

hvd.init()
for child in range(int(os.environ.get("CHILDREN", "0"))):
    if os.fork() == 0:
        flag(f"child.{runtime._generations}.{os.getppid()}.{child}")
        time.sleep(300)
for step in range(10**9):
    hvd.allreduce(np.ones(1 << 18), name="gradient")
    if step == 3:
        flag(f"pid.{hvd.rank()}", str(os.getpid()))
    if step == int(os.environ.get("RAISE", "-1")) and hvd.rank() == 1:
        raise ValueError("the cause")
"""


@pytest.fixture
def horovodrun(tmp_path: Path) -> Iterator[Launcher]:
    """Our launcher, whose processes are ended after the test."""
    launcher = Launcher("horovodrun", lambda size: [*COMMAND, str(size), sys.executable], tmp_path)
    yield launcher
    for pid in launcher.processes():
        os.kill(pid, signal.SIGKILL)


def report(launcher: Launcher) -> list[str]:
    """The launcher's last word."""
    lines = launcher.err().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("horovodrun: rank"))
    return lines[start:]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_blamed_and_no_survivor(horovodrun: Launcher, size: int, victim: int) -> None:
    process = horovodrun.start(size, TRAIN)
    horovodrun.await_flags(*(f"pid.{rank}" for rank in range(size)))
    pid = int((horovodrun.directory / f"pid.{victim}").read_text())
    os.kill(pid, signal.SIGKILL)
    code, _ = horovodrun.finish(process)
    lines = report(horovodrun)
    assert code == 137
    assert lines[0].startswith(f"horovodrun: rank {victim} failed first: killed by SIGKILL (9)")
    assert f"pid {pid}" in lines[0]
    assert len(lines) <= 15
    # The survivors have said who was lost, above the report.
    above = horovodrun.err().splitlines()[: -len(lines)]
    lost = [line for line in above if "PeerLostError" in line and f"rank {victim} (host" in line]
    assert len(lost) == size - 1
    until(lambda: not horovodrun.processes(), "the end of all processes")


@pytest.mark.parametrize("size", [2, 3])
def test_an_exception_is_shown_and_not_its_consequences(horovodrun: Launcher, size: int) -> None:
    horovodrun.env["RAISE"] = "5"
    code, _ = horovodrun.finish(horovodrun.start(size, TRAIN))
    lines = report(horovodrun)
    assert code == 1
    assert lines[0].startswith("horovodrun: rank 1 failed first: exit code 1")
    assert "  | ValueError: the cause" in lines
    assert "PeerLostError" not in "\n".join(lines)
    assert len(lines) <= 15


@pytest.mark.parametrize("children", [0, 2])
def test_nothing_survives_a_killed_launcher(horovodrun: Launcher, children: int) -> None:
    horovodrun.env["CHILDREN"] = str(children)
    process = horovodrun.start(2, TRAIN)
    horovodrun.await_flags("pid.0", "pid.1")
    assert len(horovodrun.processes()) >= 1 + 2 + 2 + 2 * children
    process.kill()
    assert process.wait() == -signal.SIGKILL
    until(lambda: not horovodrun.processes(), "the end of all processes")


def test_two_jobs_at_once(horovodrun: Launcher, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Launcher("horovodrun", horovodrun.prefix, tmp_path / "other", mark=horovodrun.mark)
    code = TRAIN.replace("10**9", "20").replace("np.ones(1 << 18)", "np.ones(4)")
    first, second = horovodrun.start(2, code), other.start(3, code)
    assert [horovodrun.finish(first)[0], other.finish(second)[0]] == [0, 0]
    assert (horovodrun.err(), other.err()) == ("", "")
