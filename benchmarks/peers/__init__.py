"""The peers, one file each, by the name that tables and `--peers` use."""

from benchmarks.peers.base import Command, Format, Job, Kind, Library, Operation, Peer, Place, Recording
from benchmarks.peers.gloo import Gloo
from benchmarks.peers.hvd import Hvd
from benchmarks.peers.hvd_timeline import HvdTimeline
from benchmarks.peers.memcpy import Memcpy
from benchmarks.peers.mpi import Mpi, Mpich, OpenMpi
from benchmarks.peers.shm import Shm

ALL: tuple[type[Peer], ...] = (Hvd, HvdTimeline, Gloo, OpenMpi, Mpich, Shm, Memcpy)
NAMES = tuple(peer.name for peer in ALL)
MPI_NAMES = tuple(peer.name for peer in ALL if issubclass(peer, Mpi))


def by_name(name: str) -> Peer:
    """Return a new peer object of that name."""
    return next(peer for peer in ALL if peer.name == name)()


__all__ = [
    "ALL",
    "MPI_NAMES",
    "NAMES",
    "Command",
    "Format",
    "Job",
    "Kind",
    "Library",
    "Operation",
    "Peer",
    "Place",
    "Recording",
    "by_name",
]
