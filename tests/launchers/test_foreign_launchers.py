"""The same script under mpirun, srun and torchrun, without horovodrun: ranks meet, compute, name the lost."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
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


# A line for Open MPI as many recipes have it, but for the two dashes that version 5 wants.
RECIPE = (
    "-np 4 --oversubscribe --bind-to none --map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH"
    " -mca pml ob1 -mca btl ^openib"
)
NOTE = "import os; assert os.environ['NCCL_DEBUG'] == 'INFO'\n"


def test_the_usual_recipe_for_open_mpi(launchers: Callable[[str], Launcher]) -> None:
    launcher = launchers("openmpi")
    mpirun = launcher.prefix(4)[0]
    launcher.prefix = lambda _: [mpirun, *RECIPE.split(), sys.executable]
    launcher.env["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "/nowhere")
    code, _ = launcher.finish(launcher.start(4, NOTE + TRAIN, "7"))
    assert code == 0, launcher.err()
    assert_complete(launcher, 4)


@pytest.mark.parametrize("words", ["-bind-to none", "-map-by slot"])
def test_open_mpi_5_wants_two_dashes(launchers: Callable[[str], Launcher], words: str) -> None:
    """What the page about mpirun says of older recipes; a version that takes them again may change it."""
    launcher = launchers("openmpi")
    mpirun = launcher.prefix(2)[0]
    launcher.prefix = lambda _: [mpirun, "-np", "2", *words.split(), sys.executable]
    assert launcher.finish(launcher.start(2, TRAIN, "7"))[0] != 0


def test_more_ranks_than_cores(mpirun: Launcher) -> None:
    """``mpirun -np 8 --verbose python3 train.py``."""
    plain = mpirun.prefix
    mpirun.prefix = lambda size: [*plain(size)[:-1], "--verbose", sys.executable]
    code, _ = mpirun.finish(mpirun.start(8, TRAIN, "7"))
    assert code == 0, mpirun.err()
    assert_complete(mpirun, 8)


@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_srun_whatever_mpi_it_serves(launchers: Callable[[str], Launcher], mpi: str) -> None:
    srun = launchers("srun")
    srun.prefix = lambda size: ["srun", f"--mpi={mpi}", "-n", str(size), sys.executable]
    code, _ = srun.finish(srun.start(3, TRAIN, "7"))
    assert code == 0, srun.err()
    assert_complete(srun, 3)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_under_srun(launchers: Callable[[str], Launcher], victim: int) -> None:
    """Without ``--kill-on-bad-exit`` the survivor ends by itself, with an error that names the victim."""
    srun = launchers("srun")
    srun.prefix = lambda size: ["srun", "-n", str(size), sys.executable]
    process = srun.start(2, LOST)
    srun.await_flags("pid.0", "pid.1")
    pid = int((srun.directory / f"pid.{victim}").read_text())
    os.kill(pid, signal.SIGKILL)
    code, _ = srun.finish(process)
    assert code != 0
    told = (srun.directory / f"lost.{1 - victim}").read_text()
    assert f"rank {victim} (" in told
    assert f"pid {pid})" in told


FOUND = {"openmpi": "openmpi", "mpich": "pmi", "srun": "slurm", "torchrun": "torchrun"}


def test_the_launcher_that_was_found_is_told(launcher: Launcher) -> None:
    launcher.env |= {"HOROVOD_LOG_LEVEL": "info", "HOROVOD_LOG_HIDE_TIME": "1", "HOROVOD_CYCLETIME": "1"}
    code, _ = launcher.finish(launcher.start(2, "import horovod.numpy as hvd; hvd.init()"))
    assert code == 0, launcher.err()
    found = FOUND[launcher.name]
    assert launcher.err().count(f"init() number 1 of {found}: plane shm, 2 ranks") == 2
    # Told once, by rank 0, because no horovodrun has told it.
    advice = "HOROVOD_CYCLETIME has no effect: did you mean HOROVOD_CYCLE_TIME?"
    assert re.findall(rf"horovod WARNING \[rank (\d)\]: {re.escape(advice)}", launcher.err()) == ["0"]
