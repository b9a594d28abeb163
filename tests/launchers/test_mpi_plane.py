"""Tensors through MPI (``HOROVOD_CPU_OPERATIONS=mpi``), with Open MPI and MPICH."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from starters import Launcher
from tests.support.mpi import environment
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

DOCS = Path(__file__).parents[2] / "docs" / "mpi.md"


@pytest.fixture
def by_mpi(mpirun: Launcher) -> Launcher:
    """A launcher whose ranks move their tensors by the MPI that starts them."""
    pytest.importorskip("mpi4py")
    mpirun.env.update(environment(mpirun.name), HOROVOD_CPU_OPERATIONS="mpi")
    return mpirun


def lines(launcher: Launcher, size: int, code: str) -> list[str]:
    """What the ranks have to say, sorted; all must end well."""
    status, output = launcher.finish(launcher.start(size, code))
    assert status == 0, launcher.err()
    return sorted(output.split())


FACTS = """
import os
import numpy as np
import horovod.numpy as hvd
from horovod._core import runtime

assert hvd.mpi_built() and hvd.mpi_enabled() and not hvd.gloo_enabled()
hvd.init()
total = hvd.allreduce(np.full(100_003, hvd.rank() + 1.0), op=hvd.Sum)
assert np.all(total == 6), total
facts = [runtime.engine().plane, hvd.mpi_enabled(), hvd.gloo_enabled(), hvd.mpi_threads_supported()]
os.write(1, (",".join(map(str, facts)) + "\\n").encode())
"""


@pytest.mark.parametrize(("disabled", "threads"), [("0", True), ("1", False)])
def test_facts(by_mpi: Launcher, disabled: str, threads: bool) -> None:
    by_mpi.env["HOROVOD_MPI_THREADS_DISABLE"] = disabled
    assert lines(by_mpi, 3, FACTS) == [f"mpi,True,False,{threads}"] * 3


BESIDE = """
import os
from mpi4py import MPI
import numpy as np
import horovod.numpy as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
for step in range(20):
    handles = [
        hvd.allreduce_async(np.full(n, rank + step), op=hvd.Sum, name=f"{n}") for n in (5, 9_000, 300_000)
    ]
    mine = MPI.COMM_WORLD.allreduce(np.full(1000, rank))
    assert np.all(mine == size * (size - 1) // 2), mine
    for handle in handles:
        assert np.all(hvd.synchronize(handle) == size * (size - 1) // 2 + size * step)
os.write(1, b"done\\n")
"""


def test_the_program_uses_mpi_at_the_same_time(by_mpi: Launcher) -> None:
    assert lines(by_mpi, 2, BESIDE) == ["done"] * 2


AGAIN = """
import os
import numpy as np
import horovod.numpy as hvd

mine = []
for comm in (None, None, [0, 2], None):
    if comm is not None and mine[0] not in comm:
        continue
    hvd.init(comm=comm)
    mine.append(hvd.rank())
    total = hvd.allreduce(np.full(50_000, 10.0**hvd.rank()), op=hvd.Sum)
    assert np.all(total == (111 if comm is None else 11)), total
    # What is under way when a world ends belongs to nobody in the next one.
    if hvd.rank() == 0:
        hvd.allreduce_async(np.full(700_000, 5.0), name="in vain")
    hvd.shutdown()
os.write(1, ("".join(map(str, mine)) + "\\n").encode())
"""


def test_one_world_after_the_other(by_mpi: Launcher) -> None:
    assert lines(by_mpi, 3, AGAIN) == ["0000", "111", "2212"]


ABANDONED = """
import os
import numpy as np
import horovod.numpy as hvd
from horovod.exceptions import HorovodInternalError

for world in range(3):
    hvd.init()
    array = np.ones(30_000_000, np.float32)
    handle = hvd.allreduce_async(array, op=hvd.Sum, name="much")
    hvd.barrier()
    if hvd.rank() == world:  # in the midst of it
        hvd.shutdown()
    try:
        hvd.synchronize(handle)
    except HorovodInternalError:
        pass
    except ValueError:
        assert not hvd.is_initialized()
    del array
    hvd.shutdown()
hvd.init()
assert np.all(hvd.allreduce(np.ones(300_000), op=hvd.Sum) == hvd.size())
os.write(1, b"done\\n")
"""


def test_messages_that_are_abandoned(by_mpi: Launcher) -> None:
    """They disturb neither the next world nor the end of MPI."""
    assert lines(by_mpi, 3, ABANDONED) == ["done"] * 3


RAISES = """
import os, sys
import numpy as np
import horovod.numpy as hvd
from horovod.exceptions import PeerLostError

hvd.init()
try:
    for step in range(10**9):
        if hvd.rank() == 1 and step == 5:
            raise ValueError("of mine")
        hvd.allreduce(np.ones(400_000), name="gradient")
except PeerLostError as error:
    here = os.environ["TEST_DIR"]
    with open(f"{here}/new.{hvd.rank()}", "w") as file: file.write(str(error))
    os.rename(f"{here}/new.{hvd.rank()}", f"{here}/lost.{hvd.rank()}")
"""


def test_a_rank_that_raises_is_named(by_mpi: Launcher) -> None:
    process = by_mpi.start(3, RAISES)
    status, _ = by_mpi.finish(process)
    assert status != 0
    assert "of mine" in by_mpi.err()
    told = [path.read_text() for path in by_mpi.directory.glob("lost.*")]
    assert all("rank 1 (" in text and "ValueError: of mine" in text for text in told), told


KILLED = """
import os
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
    with open(f"{here}/new.{hvd.rank()}", "w") as file: file.write(str(error))
    os.rename(f"{here}/new.{hvd.rank()}", f"{here}/lost.{hvd.rank()}")
    raise
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank(by_mpi: Launcher, victim: int) -> None:
    process = by_mpi.start(2, KILLED)
    by_mpi.await_flags("pid.0", "pid.1")
    pid = int(Path(by_mpi.directory, f"pid.{victim}").read_text())
    os.kill(pid, signal.SIGKILL)
    status, _ = by_mpi.finish(process)
    assert status != 0
    # mpirun itself may end the survivor before it can speak; if it spoke, it named the victim.
    told = by_mpi.directory / f"lost.{1 - victim}"
    assert not told.exists() or f"rank {victim} (" in told.read_text()


IDLE = """
import os, time
import numpy as np
import horovod.numpy as hvd

hvd.init()
for _ in range(3):
    hvd.allreduce(np.ones(400_000))
hvd.barrier()
time.sleep(0.5)
before = hvd.counters()["thread_wakeups"]
time.sleep(2)
os.write(1, f"{hvd.counters()['thread_wakeups'] - before}\\n".encode())
"""


def test_an_idle_rank_does_not_poll(by_mpi: Launcher) -> None:
    assert all(int(wakeups) <= 4 for wakeups in lines(by_mpi, 2, IDLE))


SOCKETS = """
import os
import numpy as np
from horovod import _native
import horovod.numpy as hvd
from horovod._core import runtime

def no_memory(size):
    raise OSError(38, "Function not implemented")

_native.create_region = no_memory
hvd.init()
assert runtime.current().why_sockets
total = hvd.allreduce(np.full(100_003, hvd.rank() + 1.0), op=hvd.Sum)
assert np.all(total == 6), total
assert hvd.allgather(np.full((hvd.rank(), 50_000), hvd.rank())).sum() == 50_000 * 5
os.write(1, f"{runtime.engine().plane}\\n".encode())
"""


def test_without_shared_memory(by_mpi: Launcher) -> None:
    """Then ranks talk over sockets; tensors go through MPI all the same."""
    assert lines(by_mpi, 3, SOCKETS) == ["mpi"] * 3


LEVEL = """
import os
import mpi4py
mpi4py.rc.thread_level = "funneled"
import horovod.numpy as hvd
from horovod.exceptions import InitError

try:
    hvd.init()
except InitError as error:
    assert "MPI_THREAD_MULTIPLE" in str(error), error
    os.write(1, b"refused\\n")
"""


def test_an_mpi_for_one_thread_is_refused(by_mpi: Launcher) -> None:
    assert lines(by_mpi, 2, LEVEL) == ["refused"] * 2


def test_the_command_of_the_docs(by_mpi: Launcher, tmp_path: Path) -> None:
    """The first script of docs/mpi.md, by its first command."""
    text = DOCS.read_text()
    script = re.search(r"```python\n# train.py\n(.*?)```", text, re.DOTALL)
    command = re.search(r"\n(HOROVOD_CPU_OPERATIONS=mpi mpirun -np 2 python train.py)\n", text)
    assert script is not None
    assert command is not None
    (tmp_path / "train.py").write_text(script[1])
    options = " --oversubscribe" if by_mpi.name == "openmpi" else ""
    words = command[1].replace("mpirun", "mpirun" + options).replace("python ", f"{sys.executable} ")
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_", "PMI"))
    }
    done = subprocess.run(
        ["/bin/sh", "-c", words],
        cwd=tmp_path,
        env={**kept, **environment(by_mpi.name)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[-2:] == ["rank 0 of 2: 3.0", "rank 1 of 2: 3.0"]


# -- Where there is no MPI job


def _error_of_init(hide: bool) -> Raised | None:
    import sys

    import horovod.numpy as hvd

    if hide:
        sys.modules["mpi4py"] = None  # type: ignore[assignment]
    return error_of(hvd.init)


def test_without_mpi4py(start_workers: Callable[..., Workers]) -> None:
    outcomes = start_workers(2, "mpi").run(_error_of_init, True)
    assert_raised(outcomes, "InitError", "pip install 'khorovod[mpi]'")


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_without_mpirun(
    request: pytest.FixtureRequest, start_workers: Callable[..., Workers], name: str
) -> None:
    request.getfixturevalue(name)
    pytest.importorskip("mpi4py")
    outcomes = start_workers(2, "mpi", environment(name)).run(_error_of_init, False)
    assert_raised(outcomes, "InitError", "horovodrun --mpi")
