"""The calls that every frontend offers under the same names: who am I, and with how many others."""

from __future__ import annotations

import os

from horovod._config import Settings
from horovod._core import mpi, runtime
from horovod._core.runtime import is_initialized
from horovod._core.session import init, shutdown
from horovod._core.timeline import start_timeline, stop_timeline

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def rank() -> int:
    """This process's number among all, from 0."""
    return runtime.identity().rank


def size() -> int:
    """How many processes there are."""
    return runtime.identity().size


def local_rank() -> int:
    """This process's number among those on its host: the device to use."""
    return runtime.identity().local_rank


def local_size() -> int:
    """How many processes this host has."""
    return runtime.identity().local_size


def cross_rank() -> int:
    """This host's number among the hosts that have this local rank."""
    return runtime.identity().cross_rank


def cross_size() -> int:
    """How many hosts have this local rank."""
    return runtime.identity().cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes."""
    who = runtime.identity()
    return who.size % who.local_size == 0 and who.size // who.local_size == who.cross_size


# What the original was compiled with. Nothing is compiled in here: MPI, NCCL and the like are found at run
# time, where a frontend can use them. What the original has Gloo for, the engine does itself, everywhere.


def mpi_built() -> bool:
    """Whether collectives can go through MPI, by ``HOROVOD_CPU_OPERATIONS=mpi``: whether mpi4py is there."""
    return mpi.installed()


def mpi_enabled() -> bool:
    """Whether collectives go through MPI in this job. ``mpirun`` can start jobs that use none."""
    if is_initialized():
        return runtime.current().settings.cpu_operations == "mpi"
    return Settings.from_env(os.environ).cpu_operations == "mpi"


def mpi_threads_supported() -> bool:
    """Whether the program may call MPI from any thread; ``ValueError`` if no collective goes through MPI."""
    runtime.current()
    if not mpi_enabled():
        raise ValueError("Horovod does not use MPI in this job: mpi_enabled() is False.")
    return mpi.has_threads()


def gloo_built() -> bool:
    """Whether jobs run without MPI: always."""
    return True


def gloo_enabled() -> bool:
    """Whether this job runs without MPI."""
    return not mpi_enabled()


def nccl_built() -> int:
    """The version of NCCL that the engine calls: 0, it calls none."""
    return 0


def ddl_built() -> bool:
    """IBM's DDL: no."""
    return False


def ccl_built() -> bool:
    """Intel's oneCCL: no."""
    return False


def cuda_built() -> bool:
    """Whether the engine itself moves CUDA memory: no."""
    return False


def rocm_built() -> bool:
    """Whether the engine itself moves ROCm memory: no."""
    return False
