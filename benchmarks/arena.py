"""An experiment: what would be gained if gradients lived in shared memory?

    horovodrun -np 2 python benchmarks/arena.py

Then nothing need be copied in: each of two ranks adds up one half, and writes it into both ranks' gradients.
Measured against the engine's allreduce in place, round by round, with a spinning barrier before and after as
the only synchronisation: the best case of an arena. Prints a table; benchmarks/README.md has one.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import horovod.torch as hvd

SIZES = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20)
ROUNDS = 9
PAGE = 4096


class Arena:
    """Memory that both ranks have mapped: a page of flags, and the gradients of each."""

    def __init__(self, nbytes: int) -> None:
        path = Path(hvd.broadcast_object(f"/dev/shm/khorovod-arena-{os.getpid()}", root_rank=0))
        total = PAGE + 2 * nbytes
        if hvd.rank() == 0:
            with path.open("xb") as file:
                file.truncate(total)
        hvd.barrier()
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), total)
        hvd.barrier()
        if hvd.rank() == 0:
            path.unlink()
        self._flags = np.frombuffer(self._memory, np.int64, 2 * 8).reshape(2, 8)[:, 0]
        count = nbytes // 4
        self._gradients = [
            torch.frombuffer(self._memory, dtype=torch.float32, count=count, offset=PAGE + rank * nbytes)
            for rank in range(2)
        ]
        self.own = self._gradients[hvd.rank()]
        self._other = self._gradients[1 - hvd.rank()]
        half = slice(0, count // 2) if hvd.rank() == 0 else slice(count // 2, count)
        self._left, self._right = (gradient[half] for gradient in self._gradients)

    def meet(self) -> None:
        """Both ranks are here."""
        self._flags[hvd.rank()] += 1
        while self._flags[1 - hvd.rank()] < self._flags[hvd.rank()]:
            os.sched_yield()

    def reduce(self) -> None:
        """The sum, in both ranks' gradients."""
        self.meet()
        torch.add(self._left, self._right, out=self._left)
        self._right.copy_(self._left)
        self.meet()


def seconds(call: Callable[[], object], repeat: int) -> float:
    """The time of a call, from when both ranks are ready."""
    hvd.barrier()
    began = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - began) / repeat


def main() -> None:
    """Every size, in rounds."""
    hvd.init()
    if hvd.size() != 2:
        raise SystemExit("The experiment is for two ranks: horovodrun -np 2 python benchmarks/arena.py")
    torch.set_num_threads(1)
    rows = []
    for nbytes in SIZES:
        arena, plain = Arena(nbytes), torch.zeros(nbytes // 4)
        arena.own.fill_(hvd.rank() + 1.0)
        arena.reduce()
        assert torch.equal(arena.own, torch.full_like(arena.own, 3.0))
        arena.own.zero_()
        repeat = max(2, (256 << 20) // nbytes)
        engine, shared = [], []
        for _ in range(ROUNDS):
            engine.append(seconds(lambda plain=plain: hvd.allreduce_(plain, name="plain", op=hvd.Sum), repeat))
            shared.append(seconds(arena.reduce, repeat))
        ratio = statistics.median(a / b for a, b in zip(engine, shared, strict=True))
        rows.append((nbytes >> 20, *(nbytes / statistics.median(times) / 1e9 for times in (engine, shared)), ratio))
    if hvd.rank() == 0:
        print("| MiB | engine, GB/s | arena, GB/s | arena over engine |\n|---:|---:|---:|---:|")
        for size, ours, theirs, ratio in rows:
            print(f"| {size} | {ours:.2f} | {theirs:.2f} | {ratio:.2f}x |")


if __name__ == "__main__":
    main()
