"""Running ``horovodrun`` for real, with workers that need no engine, and looking at what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import horovod

DEADLINE = 60.0
"""A guard against hangs on a loaded machine, not a measurement."""


# A shell starts background jobs with SIGINT ignored; that would be inherited, and respected.
ENTRY = """
import signal, sys
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(signum, signal.SIG_DFL)
from horovod.runner.cli import main
sys.exit(main())
"""


def until(condition: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    """Wait for ``condition``."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


class Launcher:
    """Starts ``horovodrun``; knows all processes that come of it by a mark in their environment."""

    def __init__(self, tmp_path: Path) -> None:
        self.mark = f"KHOROVOD_TEST_MARK={uuid.uuid4().hex}"
        self.tmp_path = tmp_path
        name, _, value = self.mark.partition("=")
        source = Path(horovod.__file__).parent.parent
        path = os.pathsep.join([str(source), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        self.env = {**os.environ, "PYTHONPATH": path, name: value}
        file = tmp_path / "horovodrun.py"
        file.write_text(ENTRY)
        self.prefix = [sys.executable, str(file)]

    def script(self, code: str, name: str = "worker.py") -> list[str]:
        """The command that runs ``code`` as a worker."""
        file = self.tmp_path / name
        file.write_text(code)
        return [sys.executable, "-S", str(file)]

    def run(self, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run to the end."""
        return subprocess.run(
            [*self.prefix, *args],
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start in a process group of its own, output to files ``out`` and ``err``."""
        with open(self.tmp_path / "out", "wb") as out, open(self.tmp_path / "err", "wb") as err:
            return subprocess.Popen(
                [*self.prefix, *args],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
            )

    def err(self) -> str:
        """What a started job has written to standard error."""
        return (self.tmp_path / "err").read_text()

    def marked(self) -> list[int]:
        """The processes of this test that live."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_marked(name)]

    def _is_marked(self, pid: str) -> bool:
        try:
            return self.mark.encode() in Path("/proc", pid, "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def wait_for_files(self, *names: str) -> None:
        """Wait until workers have written these files."""
        until(lambda: all((self.tmp_path / name).exists() for name in names), f"the files {names}")

    def wait_until_all_gone(self) -> None:
        """Wait until no process of this test is left."""
        until(lambda: not self.marked(), "the end of all processes")


@pytest.fixture
def horovodrun(tmp_path: Path) -> Iterator[Launcher]:
    """A :class:`Launcher`, whose processes are ended after the test."""
    launcher = Launcher(tmp_path)
    yield launcher
    for pid in launcher.marked():
        os.kill(pid, signal.SIGKILL)
