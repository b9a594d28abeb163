"""The commands on the pages about launchers run: each block of ``bash``, with a script called train.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from starters import without_launchers

PAGES = Path(__file__).parents[2] / "docs" / "launchers"
CONFIG = "params: {cycle_time_ms: 0.5}\n"
TRAIN = """
import json
import numpy as np
import horovod.numpy as hvd

hvd.init()
total = hvd.allreduce(np.array([hvd.rank() + 1.0]), op=hvd.Sum)[0]
with open(f"rank.{hvd.rank()}.json", "w") as file:
    json.dump([hvd.size(), total], file)
"""


def commands_of(page: str) -> list[str]:
    """The page's blocks of shell."""
    return re.findall(r"^```bash\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)


def cases(*pages: str) -> list[str]:
    """Every command of the pages."""
    return [command for page in pages for command in commands_of(page)]


def check(directory: Path, command: str, env: dict[str, str]) -> None:
    """Run a command as a user would; all ranks that it speaks of have met."""
    (directory / "train.py").write_text(TRAIN)
    (directory / "config.yaml").write_text(CONFIG)
    path = os.pathsep.join([str(Path(sys.executable).parent), env.pop("PATH", ""), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-e", "-c", command],
        cwd=directory,
        env={**without_launchers(os.environ), **env, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(path.read_text()) for path in directory.glob("rank.*.json")]
    size = len(found)
    asked = re.search(r"(?:-np|-n|--nproc-per-node|HOROVOD_SIZE)[ =](\d+)", command)
    assert asked is not None
    assert size == int(asked[1])
    assert found == [[size, size * (size + 1) / 2]] * size


@pytest.mark.parametrize("command", cases("horovodrun.md", "others.md"))
def test_ours(tmp_path: Path, command: str) -> None:
    check(tmp_path, command, {})


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("command", cases("torchrun.md"))
def test_torchrun(tmp_path: Path, command: str) -> None:
    check(tmp_path, command, {})


@pytest.mark.parametrize("command", cases("slurm.md"))
def test_srun(tmp_path: Path, srun: Cluster, command: str) -> None:
    check(tmp_path, command, dict(srun.env))


def mpi_env(home: Path) -> dict[str, str]:
    """Where an MPI is; what Open MPI wants of root."""
    return {
        "PATH": str(home / "bin"),
        "LD_LIBRARY_PATH": str(home / "lib"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


@pytest.mark.parametrize("command", cases("mpirun.md"))
def test_open_mpi(tmp_path: Path, openmpi: Path, command: str) -> None:
    check(tmp_path, command, mpi_env(openmpi))


@pytest.mark.parametrize("command", [command for command in cases("mpirun.md") if "-mca" not in command])
def test_mpich(tmp_path: Path, mpich: Path, command: str) -> None:
    check(tmp_path, command, mpi_env(mpich))


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md") if path.name != "python.md"))
def test_every_page_has_a_command(page: str) -> None:
    """The page about Python has a program, which tests/test_docs.py runs."""
    assert commands_of(page)
