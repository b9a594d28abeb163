"""What a peer is: a way to start ranks (driver side) and a way to reduce (worker side).

The driver half must import no framework; the worker half imports its own in `load`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

Array = npt.NDArray[Any]
Place = Literal["in", "out"]
Kind = Literal["latency", "batches", "bandwidth", "operations", "halves", "timeline", "idle", "memory"]
Operation = Literal["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]
Format = Literal["float32", "float16", "bfloat16", "fp16 wire"]  # the last: float32 that travels as float16

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Command:
    """One process for the driver to start."""

    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class Job:
    """What every rank of one world needs to find the others and the driver."""

    size: int
    directory: str
    worker: tuple[str, ...]


class Peer(ABC):
    """Something that moves float32 buffers in place on `size` ranks: the least that a yardstick can do."""

    name: str
    communicates = True
    kinds: frozenset[Kind] = frozenset({"bandwidth"})
    places: tuple[Place, ...] = ("in",)
    formats: tuple[Format, ...] = ("float32",)
    max_size: int | None = None

    rank: int
    size: int

    # The driver's half.

    @abstractmethod
    def missing(self) -> str | None:
        """Say why it cannot run here, or None."""

    @abstractmethod
    def launch(self, job: Job) -> list[Command]:
        """Return the processes that make up one world."""

    def supports(self, kind: Kind, size: int, place: Place = "in", format: Format = "float32") -> bool:
        """Whether this peer has anything to say about such a measurement."""
        fits = self.max_size is None or size <= self.max_size
        return kind in self.kinds and place in self.places and format in self.formats and fits

    # The worker's half.

    @abstractmethod
    def load(self) -> None:
        """Import the library."""

    @abstractmethod
    def connect(self, directory: str) -> None:
        """Join the world; sets `rank` and `size`."""

    def adopt(self, array: Array) -> Any:
        """Return the peer's own view of the array's memory."""
        return array

    @abstractmethod
    def in_place(self, tensor: Any, name: str) -> None:
        """Allreduce into the tensor itself."""

    @abstractmethod
    def close(self) -> None:
        """Leave the world."""


class Library(Peer):
    """A peer that people use: it also reduces out of place and asynchronously, and has other operations."""

    kinds = frozenset({"latency", "batches", "bandwidth", "operations", "halves", "idle", "memory"})
    places = ("in", "out")

    @abstractmethod
    def out_of_place(self, tensor: Any, name: str) -> Any:
        """Allreduce into a new tensor, its allocation included."""

    @abstractmethod
    def submit(self, tensor: Any, name: str, place: Place) -> Any:
        """Start an allreduce; `wait` ends it."""

    @abstractmethod
    def wait(self, handle: Any) -> None:
        """Wait for what `submit` started."""

    @abstractmethod
    def allgather(self, tensor: Any, name: str) -> Any:
        """Gather the tensors of all ranks into a new one, its allocation included, as the next two do."""

    @abstractmethod
    def alltoall(self, tensor: Any, name: str) -> Any:
        """Send an equal part to every rank, and return the parts that came."""

    @abstractmethod
    def reducescatter(self, tensor: Any, name: str) -> Any:
        """Sum, and return this rank's part of it."""

    @abstractmethod
    def broadcast(self, tensor: Any, name: str) -> None:
        """Rank 0's tensor into everybody's."""

    def counters(self) -> dict[str, int]:
        """The library's own counters, where it has any."""
        return {}


class Compressing(Library):
    """A library that can send float32 as float16; the format "fp16 wire" says so."""

    formats = ("float32", "float16", "bfloat16", "fp16 wire")

    @abstractmethod
    def compressed(self, tensor: Any, name: str) -> None:
        """Allreduce a float32 tensor in place, as float16 on its way."""


class Recording(Library):
    """A library that can write a timeline of what it does."""

    @abstractmethod
    def recording(self) -> AbstractContextManager[None]:
        """Record one within; an error if there is none in the end."""


def importable(module: str) -> bool:
    """Whether the module is there; its parents are imported, the module itself is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def one_process_per_rank(job: Job, variables: Callable[[int], Mapping[str, str]]) -> list[Command]:
    """Return plain Python workers whose environment says which rank each is."""
    argv = [sys.executable, *job.worker]
    return [Command(argv, environment(**variables(rank))) for rank in range(job.size)]


def environment(**extra: str) -> dict[str, str]:
    """Our environment without another job's ranks in it, one compute thread per process, plus `extra`."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HOROVOD_")}
    return {**inherited, **ONE_THREAD, **extra}


def ranks_by_environment(job: Job, **extra: str) -> list[Command]:
    """Return workers of a peer without a launcher of its own; `place_from_environment` reads it back."""
    return one_process_per_rank(
        job, lambda rank: {"BENCH_RANK": str(rank), "BENCH_SIZE": str(job.size), **extra}
    )


def place_from_environment() -> tuple[int, int]:
    """Rank and size as `ranks_by_environment` gave them."""
    return int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
