"""Jobs under any launcher, ours or not: a command before the script, and what came of it."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEADLINE = 60.0
"""A guard against hangs on a loaded machine, not a measurement."""

# What would make a rank believe that another launcher has started it.
_OTHER_LAUNCHERS = (
    "HOROVOD_",
    "OMPI_",
    "PMI",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_",
)


def without_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment that no launcher has had a hand in."""
    return {name: text for name, text in environ.items() if not name.startswith(_OTHER_LAUNCHERS)}


@dataclass
class Launcher:
    """One way to start ranks."""

    name: str
    prefix: Callable[[int], list[str]]
    directory: Path
    env: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, size: int, code: str, *args: str) -> subprocess.Popen[bytes]:
        """Starts ``size`` ranks of ``code``; output goes to the files ``out`` and ``err``."""
        script = self.directory / "train.py"
        script.write_text(code)
        kept = without_launchers(os.environ)
        own = {"KHOROVOD_TEST_MARK": self.mark, "OMP_NUM_THREADS": "1", "TEST_DIR": str(self.directory)}
        with open(self.directory / "out", "wb") as out, open(self.directory / "err", "wb") as err:
            return subprocess.Popen(
                [*self.prefix(size), str(script), *args],
                env={**kept, **self.env, **own},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
            )

    def finish(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """Waits for the job's end; its exit code and output."""
        try:
            return process.wait(DEADLINE), self.out()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} hangs\n{self.out()[-2000:]}\n{self.err()[-4000:]}") from None

    def out(self) -> str:
        """What the job has written to standard output."""
        return (self.directory / "out").read_text()

    def err(self) -> str:
        """What the job has written to standard error."""
        return (self.directory / "err").read_text()

    def await_flags(self, *names: str) -> None:
        """Waits until ranks have made these files."""
        until(lambda: all((self.directory / name).exists() for name in names), f"the flags {names}")

    def processes(self) -> list[int]:
        """Every living process of this job."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_ours(name)]

    def _is_ours(self, pid: str) -> bool:
        try:
            variables = Path("/proc", pid, "environ").read_bytes().split(b"\0")
            if f"KHOROVOD_TEST_MARK={self.mark}".encode() not in variables:
                return False
            return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False


def until(condition: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    """Waits for ``condition``."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)
