"""Khorovod itself: whole calls of `horovod.numpy`, names negotiated."""

from __future__ import annotations

import importlib
import secrets
from typing import Any

from benchmarks.peers.base import Command, Compressing, Job, Place, importable, one_process_per_rank


def rank_variables(rank: int, size: int, job: str) -> dict[str, str]:
    """What a launcher would tell a rank."""
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_JOB_ID": job,
    }


class Hvd(Compressing):
    """`import horovod.numpy as hvd`."""

    name = "hvd"

    def missing(self) -> str | None:
        return None if importable("horovod.numpy") else "not installed"

    def launch(self, job: Job) -> list[Command]:
        identity = secrets.token_hex(16)
        return one_process_per_rank(job, lambda rank: rank_variables(rank, job.size, identity))

    def load(self) -> None:
        self._hvd: Any = importlib.import_module("horovod.numpy")

    def connect(self, directory: str) -> None:  # noqa: ARG002 - the job id is the meeting point
        self._hvd.init()
        self.rank, self.size = self._hvd.rank(), self._hvd.size()

    def in_place(self, tensor: Any, name: str) -> None:
        self._hvd.allreduce_(tensor, name=name, op=self._hvd.Sum)

    def out_of_place(self, tensor: Any, name: str) -> Any:
        return self._hvd.allreduce(tensor, name=name, op=self._hvd.Sum)

    def submit(self, tensor: Any, name: str, place: Place) -> Any:
        start = self._hvd.allreduce_async_ if place == "in" else self._hvd.allreduce_async
        return start(tensor, name=name, op=self._hvd.Sum)

    def wait(self, handle: Any) -> None:
        self._hvd.synchronize(handle)

    def allgather(self, tensor: Any, name: str) -> Any:
        return self._hvd.allgather(tensor, name=name)

    def alltoall(self, tensor: Any, name: str) -> Any:
        return self._hvd.alltoall(tensor, name=name)

    def reducescatter(self, tensor: Any, name: str) -> Any:
        return self._hvd.reducescatter(tensor, name=name, op=self._hvd.Sum)

    def broadcast(self, tensor: Any, name: str) -> None:
        self._hvd.broadcast_(tensor, 0, name=name)

    def compressed(self, tensor: Any, name: str) -> None:
        fp16 = self._hvd.Compression.fp16
        self._hvd.allreduce_(tensor, name=name, op=self._hvd.Sum, compression=fp16)

    def counters(self) -> dict[str, int]:
        read = getattr(self._hvd, "counters", dict)
        return {key: int(value) for key, value in read().items() if isinstance(value, int)}

    def close(self) -> None:
        self._hvd.shutdown()
