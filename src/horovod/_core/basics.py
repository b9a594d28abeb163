"""The calls that every frontend offers under the same names: who am I, and with how many others."""

from __future__ import annotations

from horovod._core import runtime
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
    """Whether collectives can go through MPI: not in this version."""
    return False


def mpi_enabled() -> bool:
    """Whether collectives go through MPI: not in this version. ``mpirun`` can start jobs all the same."""
    return False


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads; ``ValueError``, as no collective goes through MPI."""
    runtime.current()
    raise ValueError("Horovod does not use MPI in this job: mpi_enabled() is False.")


def gloo_built() -> bool:
    """Whether jobs run without MPI: always."""
    return True


def gloo_enabled() -> bool:
    """Whether this job runs without MPI: always."""
    return True


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
