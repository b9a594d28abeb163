"""How a rank ended is what the others read, in the error of whatever they were doing: exit code, signal,
exception, lack of memory. The launcher knows some of it, the rank itself the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SIZE = 3
SCRIPT = """
import ctypes, os, sys, time
import numpy as np
import horovod.numpy as hvd
hvd.init()
hvd.allreduce(np.ones(4), name="warm")
if hvd.rank() == {victim}:
    {ending}
try:
    while True:
        hvd.allreduce(np.ones(1 << 16), name="needed")
except hvd.HorovodInternalError as error:
    sys.stdout.write(f"LOST {{type(error).__name__}}: {{error}}\\n")
    sys.stdout.flush()
"""
ENDINGS = {
    "os.kill(os.getpid(), 9)": "killed by SIGKILL (9)",
    "ctypes.string_at(0)": "killed by SIGSEGV (11)",
    "os.abort()": "killed by SIGABRT (6)",
    "os._exit(3)": "exit code 3",
    "os._exit(0)": "exit code 0",
    "sys.exit(5)": "exit code 5",
    "sys.exit(0)": "exit code 0",
    "raise ValueError('boom')": "its program ended with ValueError: boom ({script}:8 in <module>)",
    "hvd.shutdown(); time.sleep(1); os._exit(0)": "has shut down",
}
# Each on another rank than the one before, so that the coordinator has its share.
CASES = [(ending, (SIZE - 1) * (number % 2)) for number, ending in enumerate(ENDINGS)]


def survivors_of(tmp_path: Path, victim: int, ending: str, plane: str = "auto") -> list[str]:
    """What each survivor printed of its error."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(victim=victim, ending=ending))
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner.cli", "-np", str(SIZE), sys.executable, str(script)],
        env={**os.environ, "HOROVOD_CPU_OPERATIONS": plane},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found: list[str] = re.findall(r"^\[\d+\]<stdout>:LOST (.*)$", done.stdout, re.MULTILINE)
    assert len(found) == SIZE - 1, done.stdout + done.stderr
    return found


@pytest.mark.parametrize(("ending", "victim"), [*CASES, ("os.kill(os.getpid(), 9)", SIZE - 1)])
def test_survivors_read_how_a_rank_ended(tmp_path: Path, victim: int, ending: str) -> None:
    expected = ENDINGS[ending].format(script=tmp_path / "train.py")
    for message in survivors_of(tmp_path, victim, ending):
        assert re.match(rf"PeerLostError: rank {victim} \(host localhost, pid \d+\)", message)
        assert expected in message


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), 9)", "raise ValueError('boom')"])
def test_over_sockets_too(tmp_path: Path, ending: str) -> None:
    expected = ENDINGS[ending].format(script=tmp_path / "train.py")
    for message in survivors_of(tmp_path, 1, ending, plane="tcp"):
        assert message.startswith("PeerLostError: rank 1 (host localhost, pid "), message
        assert expected in message


LINGERS = """
import atexit, os, time
import numpy as np
import horovod.numpy as hvd
atexit.register(time.sleep, 3)  # after hvd has said goodbye to the others
hvd.init()
if hvd.rank() == 1:
    raise ValueError("boom")
try:
    hvd.allreduce(np.ones(4), name="needed")
except hvd.HorovodInternalError:
    os._exit(4)
"""


def test_whoever_lost_a_rank_is_not_the_first_to_fail(tmp_path: Path) -> None:
    """Though its process ended first, with an exit code of its own and no traceback."""
    script = tmp_path / "train.py"
    script.write_text(LINGERS)
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner.cli", "-np", "2", sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "rank 1 failed first: exit code 1" in done.stderr, done.stderr
    assert "ValueError: boom" in done.stderr.splitlines()[-2], done.stderr
    assert done.returncode == 1


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A control group with little memory; into its ``cgroup.procs`` goes who shall have no more."""
    name = f"khorovod-test-{uuid.uuid4().hex[:8]}"
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", root, name)
        try:
            group.mkdir()
            (group / limit).write_text(str(256 << 20))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no control group with a memory limit can be made here")


def test_the_oom_killer(tmp_path: Path, memory_cgroup: Path) -> None:
    procs = memory_cgroup / "cgroup.procs"
    move = f"open({str(procs)!r}, 'w').write(str(os.getpid()))"
    ending = f"{move}; hoard = [b'x' * (1 << 24) for _ in range(999)]"
    for message in survivors_of(tmp_path, 1, ending):
        assert "killed by SIGKILL (9)" in message
        assert "out of memory" in message
