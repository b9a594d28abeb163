"""``HOROVOD_THREAD_AFFINITY``: the engine's thread stays where it is told to; the program's do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from horovod._core.affinity import cpu_of

CPUS = sorted(os.sched_getaffinity(0))
SHOW = """
import os
import horovod.numpy as hvd

hvd.init()
cpus = {}
for task in os.listdir("/proc/self/task"):
    name = open(f"/proc/self/task/{task}/comm").read().strip()
    cpus[name] = sorted(os.sched_getaffinity(int(task)))
print(cpus["khorovod"], sorted(os.sched_getaffinity(0)))
"""


@pytest.mark.parametrize(
    ("cpus", "local_rank", "local_size", "cpu"),
    [((), 0, 2, None), ((3, 5), 0, 2, 3), ((3, 5), 1, 2, 5), ((7, 8), 0, 1, 7)],
)
def test_which_cpu(cpus: tuple[int, ...], local_rank: int, local_size: int, cpu: int | None) -> None:
    assert cpu_of(cpus, local_rank, local_size) == cpu


def test_too_few() -> None:
    with pytest.raises(ValueError, match="names 1 CPUs for 2 ranks"):
        cpu_of((3,), 0, 2)


def run(tmp_path: Path, affinity: str) -> tuple[list[str], str]:
    """What two ranks print, and what they complain of."""
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    command = [sys.executable, "-m", "horovod.runner.cli", "-np", "2", "--thread-affinity", affinity]
    done = subprocess.run(
        [*command, sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines()), done.stderr


def test_the_engines_thread_alone_is_pinned(tmp_path: Path) -> None:
    first, last = CPUS[0], CPUS[-1]
    lines, complaints = run(tmp_path, f"{last},{first}")
    assert lines == [f"[0]<stdout>:[{last}] {CPUS}", f"[1]<stdout>:[{first}] {CPUS}"]
    assert complaints == ""


@pytest.mark.parametrize(
    ("affinity", "words"),
    [("0", "names 1 CPUs for 2 ranks on this host"), ("100000,100001", "cannot run on CPU 10000")],
)
def test_what_cannot_be_done_is_told_and_the_job_runs(tmp_path: Path, affinity: str, words: str) -> None:
    lines, complaints = run(tmp_path, affinity)
    assert lines == [f"[{rank}]<stdout>:{CPUS} {CPUS}" for rank in range(2)]
    assert words in complaints
