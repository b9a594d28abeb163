"""The MPI plane beside the others and raw MPI: `python -m benchmarks.mpi_plane`, two ranks of one machine.

Each line of the table is an allreduce of float32 in place, by `horovod.numpy` on one plane or by
MPI_Allreduce through mpi4py, with ranks that the same `mpirun` starts. A number is the median over the rounds
of the median of a round.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.peers.mpi import Mpi, Mpich, OpenMpi

SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
CALLS = {"1 KiB": 2000, "1 MiB": 200, "64 MiB": 10}
PLANES = ("shm", "tcp", "mpi", "raw")
ROUNDS = 3
SECONDS = 300


def main() -> int:
    """Measure, print the table."""
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(ROUNDS):
        for library in (OpenMpi(), Mpich()):
            for plane in PLANES:
                rows.setdefault((library.name, plane), []).append(_round(library, plane))
    print("| started by | plane | " + " | ".join(SIZES) + " |\n|---|---|" + "---|" * len(SIZES))
    for (name, plane), rounds in rows.items():
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(f"| {name} | {plane} | " + " | ".join(f"{us:,.0f} us" for us in medians) + " |")
    return 0


def _round(library: Mpi, plane: str) -> list[float]:
    """Medians in microseconds, by size."""
    variables = {} if plane == "raw" else {"HOROVOD_CPU_OPERATIONS": plane}
    done = subprocess.run(
        [*library.mpirun(2), sys.executable, "-m", "benchmarks.mpi_plane", plane],
        env={**library.environment(), **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return [float(word) for word in done.stdout.split()]


def rank(plane: str) -> None:
    """One rank's part; rank 0 prints the medians."""
    reduce, barrier, mine = _raw() if plane == "raw" else _own()
    for name, size in SIZES.items():
        tensor = np.zeros(size // 4, np.float32)
        times = []
        for call in range(CALLS[name] + 3):
            if call % 10 == 0:
                barrier()
            began = time.perf_counter()
            reduce(tensor, name)
            times.append(time.perf_counter() - began)
        if mine == 0:
            print(statistics.median(times[3:]) * 1e6, flush=True)


def _raw() -> tuple[Callable[[Any, str], object], Callable[[], object], int]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda tensor, _: world.Allreduce(MPI.IN_PLACE, tensor), world.Barrier, world.Get_rank()


def _own() -> tuple[Callable[[Any, str], object], Callable[[], object], int]:
    import horovod.numpy as hvd

    hvd.init()
    return lambda tensor, name: hvd.allreduce_(tensor, op=hvd.Sum, name=name), hvd.barrier, hvd.rank()


if __name__ == "__main__":
    sys.exit(main() if len(sys.argv) == 1 else rank(sys.argv[1]))
