"""The shared-memory prototype's scheme, written with numpy: what the engine must not be slower than.

Two ranks stream their tensors through small hot slots, double-buffered, and each adds the other's chunk to
its own. It spins, negotiates nothing, and survives nothing: a yardstick for the data path alone. Chunks are
large enough that the interpreter's share is a few per cent. The order of the stores is x86's.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from benchmarks.peers.base import Array, Command, Job, Peer, place_from_environment, ranks_by_environment

CHUNK = 64 * 1024  # floats: 256 KiB, so that the slots of both ranks stay in L2
SLOTS = 2
LINE = 64  # bytes between two words that different ranks write


class Shm(Peer):
    """The direct scheme between two ranks; in place only."""

    name = "shm"
    max_size = 2

    def missing(self) -> str | None:
        return None if os.uname().machine == "x86_64" else "needs x86_64's order of stores"

    def launch(self, job: Job) -> list[Command]:
        return ranks_by_environment(job)

    def load(self) -> None:
        pass

    def connect(self, directory: str) -> None:
        self.rank, self.size = place_from_environment()
        slot_bytes = self.size * SLOTS * CHUNK * 4
        length = slot_bytes + 2 * self.size * LINE
        path = Path(directory) / "shm"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, length)
        region = mmap.mmap(descriptor, length)
        os.close(descriptor)
        slots = np.frombuffer(region, np.float32, self.size * SLOTS * CHUNK).reshape(self.size, SLOTS, CHUNK)
        peer = 1 - self.rank
        self._mine, self._theirs = slots[self.rank], slots[peer]
        # Words: how many chunks rank r has written, then how many it has read.
        self._words = memoryview(region)[slot_bytes:].cast("q")
        step = LINE // 8
        self._wrote, self._peer_wrote = self.rank * step, peer * step
        self._read, self._peer_read = (2 + self.rank) * step, (2 + peer) * step
        self._chunks = 0

    def in_place(self, tensor: Array, name: str) -> None:  # noqa: ARG002 - matched by order
        words, peer_wrote, peer_read = self._words, self._peer_wrote, self._peer_read
        for start in range(0, tensor.size, CHUNK):
            chunk = tensor[start : start + CHUNK]
            slot, length, number = self._chunks % SLOTS, chunk.size, self._chunks + 1
            while words[peer_read] < number - SLOTS:
                pass
            self._mine[slot, :length] = chunk
            words[self._wrote] = number
            while words[peer_wrote] < number:
                pass
            np.add(chunk, self._theirs[slot, :length], out=chunk)
            words[self._read] = number
            self._chunks = number

    def close(self) -> None:
        pass
