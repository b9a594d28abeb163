"""Every example runs, alone and on several workers, and what the README promises of the demo is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIGITS = "examples/numpy/digits.py"
LAST_LINE = re.compile(r"worker (\d) of (\d): test accuracy ([\d.]+)%, weights (\w+)")
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


@pytest.mark.parametrize("command", ["make demo", "make test", "make wheel"])
def test_the_readme_names_targets_that_exist(command: str) -> None:
    assert command in (ROOT / "README.md").read_text()
    target = command.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_make_demo_is_what_is_tested_here() -> None:
    assert f"horovodrun -np 2 python {DIGITS}" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / document).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []
