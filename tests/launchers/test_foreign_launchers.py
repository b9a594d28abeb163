"""The same script under mpirun, srun and torchrun, without horovodrun: ranks meet, compute, name the lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from starters import Launcher

TRAIN = """
import json, os, sys
import numpy as np
import horovod.numpy as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
total = hvd.allreduce(np.full(1 << 16, rank + 1.0), op=hvd.Sum, name="sum")
assert np.all(total == size * (size + 1) / 2), total
weights = hvd.broadcast(np.full(5, rank), 1, name="weights")
assert np.all(weights == 1)
hvd.barrier()
ids = hvd.allreduce(np.array([int(sys.argv[1])]), op=hvd.Sum, name="id")
assert ids[0] == size * int(sys.argv[1])
local, cross = [hvd.local_rank(), hvd.local_size()], [hvd.cross_rank(), hvd.cross_size()]
line = {"rank": rank, "size": size, "local": local, "cross": cross}
with open(os.path.join(os.environ["TEST_DIR"], f"done.{rank}"), "w") as file:
    json.dump(line, file)
"""


def facts(launcher: Launcher, size: int) -> list[dict[str, object]]:
    """What each rank has found out."""
    return [json.loads((launcher.directory / f"done.{rank}").read_text()) for rank in range(size)]


def assert_complete(launcher: Launcher, size: int) -> None:
    """Every rank of the job has found its place."""
    found = facts(launcher, size)
    assert [fact["rank"] for fact in found] == list(range(size))
    assert all(fact["size"] == size and fact["cross"] == [0, 1] for fact in found)
    assert sorted(fact["local"][0] for fact in found) == list(range(size))  # type: ignore[index]
    assert all(fact["local"][1] == size for fact in found)  # type: ignore[index]


@pytest.mark.parametrize("size", [2, 4])
def test_a_job(launcher: Launcher, size: int) -> None:
    code, _ = launcher.finish(launcher.start(size, TRAIN, "7"))
    assert code == 0, launcher.err()
    assert_complete(launcher, size)


@pytest.mark.parametrize("name", ["openmpi", "mpich", "srun", "torchrun"])
def test_two_jobs_at_once_do_not_meet(launchers: Callable[[str], Launcher], name: str) -> None:
    first, second = launchers(name), launchers(name)
    one, two = first.start(2, TRAIN, "3"), second.start(2, TRAIN, "40")
    assert [first.finish(one)[0], second.finish(two)[0]] == [0, 0], first.err() + second.err()
    assert_complete(first, 2)
    assert_complete(second, 2)


LOST = """
import os, sys, time
import numpy as np
import horovod.numpy as hvd
from horovod.exceptions import PeerLostError

here = os.environ["TEST_DIR"]
hvd.init()
try:
    for step in range(10**9):
        hvd.allreduce(np.ones(1 << 18), name="gradient")
        if step == 3:
            with open(f"{here}/pid.{hvd.rank()}.new", "w") as file: file.write(str(os.getpid()))
            os.rename(f"{here}/pid.{hvd.rank()}.new", f"{here}/pid.{hvd.rank()}")
except PeerLostError as error:
    with open(f"{here}/lost.{hvd.rank()}", "w") as file: file.write(str(error))
    raise
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_under_mpirun(mpirun: Launcher, victim: int) -> None:
    process = mpirun.start(2, LOST)
    mpirun.await_flags("pid.0", "pid.1")
    pid = int(Path(mpirun.directory, f"pid.{victim}").read_text())
    os.kill(pid, signal.SIGKILL)
    code, _ = mpirun.finish(process)
    assert code != 0
    # mpirun itself may end the survivor before it can speak; if it spoke, it named the victim.
    told = mpirun.directory / f"lost.{1 - victim}"
    assert not told.exists() or f"rank {victim} (" in told.read_text()
    assert not told.exists() or f"pid {pid})" in told.read_text()
