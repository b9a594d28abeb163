"""Every example runs, alone and on several workers, and what the README promises of the demo is true."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
DIGITS = "examples/numpy/digits.py"
LAST_LINE = re.compile(r"worker (\d) of (\d): test accuracy ([\d.]+)%, weights (\w+)")
MNIST = "examples/torch/mnist.py"
EPOCH_LINE = re.compile(r"^\[0\]<stdout>:epoch (\d+): test loss [\d.]+, accuracy ([\d.]+)%$", re.MULTILINE)
CIFAR = "examples/torch/cifar.py"
SYNTHETIC = "examples/torch/synthetic_benchmark.py"
UNEVEN = "examples/numpy/uneven_data.py"
UNEVEN_LINE = re.compile(r"worker (\d) of (\d): (\d+) steps, error ([\d.]+), weights (\w+)")


def run(*command: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_digits(workers: int) -> None:
    output = run("horovodrun", "-np", str(workers), "python", DIGITS)
    results = sorted(LAST_LINE.findall(output))
    assert [(rank, size) for rank, size, _, _ in results] == [(str(r), str(workers)) for r in range(workers)]
    assert all(float(accuracy) > 93 for _, _, accuracy, _ in results)
    assert len({weights for *_, weights in results}) == 1
    progress = [line for line in output.splitlines() if "epoch" in line]
    assert progress
    assert all(line.startswith("[0]<stdout>:") for line in progress)


def test_digits_is_reproducible() -> None:
    outputs = [sorted(LAST_LINE.findall(run("horovodrun", "-np", "2", "python", DIGITS))) for _ in range(2)]
    assert outputs[0] == outputs[1]


def test_digits_without_a_launcher() -> None:
    assert LAST_LINE.search(run("python", DIGITS))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_uneven_data(workers: int) -> None:
    results = sorted(UNEVEN_LINE.findall(run("horovodrun", "-np", str(workers), "python", UNEVEN)))
    steps = ("35", "55", "80")[:workers]
    expected = [(str(rank), str(workers), count) for rank, count in enumerate(steps)]
    assert [result[:3] for result in results] == expected
    assert all(float(error) < 0.02 for _, _, _, error, _ in results)
    assert len({weights for *_, weights in results}) == 1


def test_uneven_data_without_a_launcher() -> None:
    assert UNEVEN_LINE.search(run("python", UNEVEN))


@pytest.mark.parametrize(
    "options",
    [[], ["--fp16-allreduce"], ["--use-adasum"], ["--gradient-predivide-factor", "2", "--batch_size=32"]],
    ids=" ".join,
)
def test_mnist(options: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.pt"
    output = run("horovodrun", "-np", "2", "python", MNIST, "--checkpoint", str(checkpoint), *options)
    epochs = EPOCH_LINE.findall(output)
    assert [int(epoch) for epoch, _ in epochs] == list(range(1, 11))
    assert float(epochs[-1][1]) > 95
    assert checkpoint.stat().st_size > 100_000
    assert "[1]<stdout>" not in output, "only the first worker speaks"


def test_mnist_accumulates() -> None:
    options = ["--batches-per-allreduce", "2", "--batch-size", "16", "--epochs", "6"]
    output = run("horovodrun", "-np", "3", "python", MNIST, *options)
    assert float(EPOCH_LINE.findall(output)[-1][1]) > 90


def test_mnist_without_a_launcher() -> None:
    assert re.search(r"^epoch 2: test loss", run("python", MNIST, "--epochs", "2"), re.MULTILINE)


def test_mnist_reads_the_real_files(tmp_path: Path) -> None:
    """In their format: a magic number, the dimensions, the bytes; compressed or not."""
    random = np.random.default_rng(0)
    for part, count in (("train", 256), ("t10k", 64)):
        labels = random.integers(0, 10, count, np.uint8)
        images = (random.integers(0, 60, (count, 28, 28)) + 19 * labels[:, None, None]).astype(np.uint8)
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            data = header + array.tobytes()
            packed = part == "train"
            name = f"{part}-{what}-ubyte" + (".gz" if packed else "")
            (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    options = ["--data-dir", str(tmp_path), "--epochs", "1", "--batch-size", "16", "--log-interval", "1"]
    output = run("horovodrun", "-np", "2", "python", MNIST, *options)
    assert "epoch 1 batch 8/8" in output, "256 images, 2 workers, batches of 16"
    assert len(EPOCH_LINE.findall(output)) == 1


def test_cifar() -> None:
    output = run("horovodrun", "-np", "2", "python", CIFAR)
    lines = re.findall(r"worker (\d), epoch 3: accuracy ([\d.]+)%", output)
    assert sorted(rank for rank, _ in lines) == ["0", "1"]
    assert len({accuracy for _, accuracy in lines}) == 1
    assert float(lines[0][1]) > 95


@pytest.mark.parametrize("options", [[], ["--fp16-allreduce"], ["--use-adasum"]], ids=" ".join)
def test_synthetic_benchmark(options: list[str]) -> None:
    quick = ["--model", "resnet10", "--num-iters", "2", "--num-batches-per-iter", "1", "--image-size", "32"]
    output = run("horovodrun", "-np", "2", "python", SYNTHETIC, *quick, *options)
    per_worker = float(re.search(r"images/s per worker: ([\d.]+)", output)[1])  # type: ignore[index]
    total = float(re.search(r"images/s of 2 worker\(s\): ([\d.]+)", output)[1])  # type: ignore[index]
    assert total == pytest.approx(2 * per_worker, abs=0.2)
    assert "scaling efficiency" in output


@pytest.mark.parametrize("command", ["make demo", "make test", "make wheel"])
def test_the_readme_names_targets_that_exist(command: str) -> None:
    assert command in (ROOT / "README.md").read_text()
    target = command.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_make_demo_is_what_is_tested_here() -> None:
    assert f"horovodrun -np 2 python {MNIST}" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / document).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_the_notebook() -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "examples/notebooks/digits.ipynb", as_version=4)
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    said = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("epoch 10: loss" in text for text in said), "what the workers print is shown"
    assert any("rank 1: ValueError('no data on this worker')" in text for text in said)
