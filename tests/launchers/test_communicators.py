"""``init(comm=...)`` with real communicators, of Open MPI and MPICH through mpi4py."""

from __future__ import annotations

import pytest
from starters import Launcher
from tests.support.mpi import environment

CODE = """
import os
from mpi4py import MPI
import numpy as np
import horovod.numpy as hvd

world = MPI.COMM_WORLD
mine = world.Get_rank()


def look(comm):
    hvd.init(comm=comm)
    total = hvd.allreduce(np.array([float(mine)]), op=hvd.Sum)[0]
    found = f"{hvd.rank()} {hvd.size()} {hvd.local_rank()} {hvd.local_size()} {total:g}"
    hvd.shutdown()
    return found


parts = [look(world), look(world.Split(mine % 2, -mine)), look(None)]
os.write(1, (f"{mine}: " + ", ".join(parts) + "\\n").encode())
"""


@pytest.fixture
def with_mpi4py(mpirun: Launcher) -> Launcher:
    """A launcher whose ranks find the MPI that starts them."""
    pytest.importorskip("mpi4py")
    mpirun.env.update(environment(mpirun.name))
    return mpirun


def test_the_world_and_its_halves(with_mpi4py: Launcher) -> None:
    code, output = with_mpi4py.finish(with_mpi4py.start(4, CODE))
    assert code == 0, with_mpi4py.err()
    found = dict(line.split(": ") for line in sorted(output.split("\n")) if ": " in line)
    for mine in range(4):
        world, half, again = found[str(mine)].split(", ")
        assert world == f"{mine} 4 {mine} 4 6"
        assert half == f"{1 - mine // 2} 2 {1 - mine // 2} 2 {2 if mine % 2 == 0 else 4}", "in reverse order"
        assert again.split()[0::2] == [str(mine), again.split()[2], "6"]
