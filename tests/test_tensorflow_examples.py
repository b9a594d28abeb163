"""Every example of TensorFlow and Keras runs, under horovodrun and mpirun, and learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
SECONDS = 280
pytestmark = pytest.mark.timeout(SECONDS + 20)

Run = Callable[..., str]


def _environment(**more: str) -> dict[str, str]:
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_", "PMI"))
    }
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{BIN}{os.pathsep}{_openmpi() / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**kept, **quiet, **root, "PATH": path, **more}


def _openmpi() -> Path:
    return Path(os.environ.get("KHOROVOD_TEST_OPENMPI") or ROOT / "build" / "mpi" / "openmpi")


@pytest.fixture
def run() -> Run:
    """Runs a command, and returns what it says."""

    def run(*command: str, **more: str) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(**more),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-6000:]
        return done.stdout

    return run


LAUNCHERS = {
    "horovodrun": ["horovodrun", "-np", "2"],
    "mpirun": ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2"],
}


@pytest.fixture(params=list(LAUNCHERS))
def launcher(request: pytest.FixtureRequest) -> list[str]:
    """The command that starts two workers."""
    if request.param == "mpirun" and not (_openmpi() / "bin" / "mpirun").exists():
        if os.environ.get("CI") == "true":
            pytest.fail("in CI nothing may be missing: `make peers` installs Open MPI")
        pytest.skip("no Open MPI; `make peers` installs it")
    return LAUNCHERS[request.param]


def _accuracies(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"accuracy ([\d.]+)%", output)]


@pytest.mark.parametrize("options", [[], ["--fp16-allreduce"]], ids=["plain", "fp16"])
def test_mnist(run: Run, launcher: list[str], options: list[str], tmp_path: Path) -> None:
    command = [*launcher, "python", "examples/tensorflow/mnist.py", "--epochs", "8"]
    output = run(*command, *options, "--checkpoints", str(tmp_path))
    assert len(_accuracies(output)) == 8, "only the first worker speaks"
    assert _accuracies(output)[-1] > 90
    assert list(tmp_path.glob("model-8*"))


def test_session(run: Run, launcher: list[str], tmp_path: Path) -> None:
    command = [*launcher, "python", "examples/tensorflow/mnist_session.py", "--train-logs", str(tmp_path)]
    accuracies = _accuracies(run(*command))
    assert len(accuracies) == 10, "only the first worker speaks"
    assert accuracies[-1] > 85
    assert (tmp_path / "checkpoint").exists()


def test_resnet34(run: Run, launcher: list[str]) -> None:
    small = ["--width", "8", "--steps", "40", "--batch-size", "16"]
    accuracies = _accuracies(run(*launcher, "python", "examples/tensorflow/resnet34.py", *small))
    assert len(accuracies) == 3, "only the first worker speaks"
    assert accuracies[-1] > 30, "10 classes"


@pytest.mark.parametrize("options", [[], ["--no-mpi"]], ids=["mpirun", "horovodrun"])
def test_fit_from_one_program(run: Run, options: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "examples/keras/mnist_fit.py", "--directory", str(tmp_path), *options]
    output = run(*command)
    last = re.findall(r"accuracy of each worker: ([\d.]+)%, ([\d.]+)%", output)
    assert len(last) == 1
    assert last[0][0] == last[0][1], "averaged"
    assert float(last[0][0]) > 80
    assert (tmp_path / "checkpoint-6.keras").exists()


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_digits(run: Run, launcher: list[str], backend: str, tmp_path: Path) -> None:
    save = ["--save", str(tmp_path / "digits.keras")]
    command = [*launcher, "python", "examples/keras/digits.py"]
    output = run(*command, *save, KERAS_BACKEND=backend)
    found = re.findall(rf"worker (\d) of 2 on {backend}: test loss [\d.]+, accuracy ([\d.]+)%", output)
    assert sorted(rank for rank, _ in found) == ["0", "1"]
    assert found[0][1] == found[1][1], "the same model"
    assert float(found[0][1]) > 85


def test_digits_goes_on(run: Run, tmp_path: Path) -> None:
    saved = str(tmp_path / "digits.keras")
    command = [*LAUNCHERS["horovodrun"], "python", "examples/keras/digits.py", "--epochs", "2"]
    run(*command, "--save", saved)
    output = run(*command, "--resume", saved)
    found = re.findall(r"worker \d of 2 on \w+: test loss [\d.]+, accuracy ([\d.]+)%", output)
    assert len(found) == 2
    assert len(set(found)) == 1
