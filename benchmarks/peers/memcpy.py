"""The limit: every rank copies a buffer of the same size at the same time, and nobody communicates."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.base import Array, Command, Job, Peer, place_from_environment, ranks_by_environment


class Memcpy(Peer):
    """`numpy.copyto` between two warm buffers; "in place" for the table's sake."""

    name = "memcpy"
    communicates = False

    def missing(self) -> str | None:
        return None

    def launch(self, job: Job) -> list[Command]:
        return ranks_by_environment(job)

    def load(self) -> None:
        pass

    def connect(self, directory: str) -> None:  # noqa: ARG002 - there is nobody to meet
        self.rank, self.size = place_from_environment()

    def adopt(self, array: Array) -> Any:
        return array, np.zeros_like(array) + 1

    def in_place(self, tensor: Any, name: str) -> None:  # noqa: ARG002
        source, target = tensor
        np.copyto(target, source)

    def close(self) -> None:
        pass
