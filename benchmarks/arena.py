"""An experiment: what would be gained if gradients lived in shared memory?

    horovodrun -np 2 python benchmarks/arena.py

Then nothing need be copied in: each of two ranks adds up one half, and writes it into both ranks' gradients.
Measured against the engine's allreduce in place, round by round, with a spinning barrier before and after as
the only synchronisation: the best case of an arena. But gradients that stay where they are cannot be replaced
by the backward pass: they are set to zero and added to (`zero_grad(set_to_none=False)`), which is measured
too, on the model with 100 MB of gradients. Prints both; benchmarks/README.md has them.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

import horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.training.models import TASKS

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


def step_of(model: torch.nn.Module, batch: torch.Tensor, keep: bool) -> Callable[[], None]:
    """A training step that keeps its gradients' memory, or not; without communication."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keep)

    return step


def compare_keeping() -> tuple[float, float]:
    """Milliseconds that keeping costs in a step of 100 MB of gradients, and how much longer it takes."""
    task = TASKS["mlp"]
    model, batch = task.model(), torch.randn(task.batch)
    replacing, keeping = step_of(model, batch, False), step_of(model, batch, True)
    pairs = []
    for _ in range(ROUNDS):
        times = []
        for step in (replacing, keeping):
            step()
            times.append(seconds(step, 5))
        pairs.append(times)
    more = statistics.median(kept - replaced for replaced, kept in pairs)
    return more * 1000, statistics.median(kept / replaced for replaced, kept in pairs)


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
            engine.append(seconds(partial(hvd.allreduce_, plain, name="plain", op=hvd.Sum), repeat))
            shared.append(seconds(arena.reduce, repeat))
        ratio = statistics.median(a / b for a, b in zip(engine, shared, strict=True))
        speeds = [nbytes / statistics.median(times) / 1e9 for times in (engine, shared)]
        rows.append((nbytes >> 20, *speeds, ratio))
    if hvd.rank() == 0:
        print("| MiB | engine, GB/s | arena, GB/s | arena over engine |\n|---:|---:|---:|---:|")
        for size, ours, theirs, ratio in rows:
            print(f"| {size} | {ours:.2f} | {theirs:.2f} | {ratio:.2f}x |")
    more, factor = compare_keeping()
    if hvd.rank() == 0:
        print(f"keeping gradients, 100 MB: {more:+.1f} ms per step, {factor:.2f}x the time")


if __name__ == "__main__":
    main()
