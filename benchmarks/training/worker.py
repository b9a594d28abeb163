"""One rank: trains the models that the driver asks for, and says how long the parts of a step took."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from benchmarks.training.models import TASKS
from benchmarks.training.trainers import TRAINERS, Step, Trainer
from benchmarks.worker import die_with, options_of, report_to, serve

_now = time.monotonic_ns


@dataclass(frozen=True)
class Train:
    """`steps` steps of a model; a timeline of them may be recorded."""

    kind: ClassVar[str] = "train"
    model: str
    steps: int
    warmup: int
    recording: bool = False


class Trainee:
    """Keeps its models from case to case."""

    def __init__(self, trainer: Trainer, ready: Callable[[], None]) -> None:
        self._trainer, self._ready = trainer, ready
        self._models: dict[str, Step] = {}

    def run(self, case: Train) -> dict[str, Any]:
        """Warm up, meet the others, train; times in milliseconds per step."""
        model, optimizer = self._prepared(case.model)
        torch.manual_seed(self._trainer.rank)
        batch = torch.randn(TASKS[case.model].batch)
        with self._trainer.recording() if case.recording else nullcontext():
            for _ in range(case.warmup):
                _step(model, optimizer, batch)
            self._ready()
            began, cpu = _now(), time.process_time_ns()
            backward, waiting = zip(*[_step(model, optimizer, batch) for _ in range(case.steps)], strict=True)
            took, used = _now() - began, time.process_time_ns() - cpu
        return {
            "step_ms": took / case.steps / 1e6,
            "cpu_ms": used / case.steps / 1e6,
            "backward_ms": sum(backward) / case.steps / 1e6,
            "optimizer_ms": sum(waiting) / case.steps / 1e6,
            "parameters": sum(1 for _ in model.parameters()),
        }

    def _prepared(self, name: str) -> Step:
        if name not in self._models:
            torch.manual_seed(1)
            model = TASKS[name].model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            self._models[name] = self._trainer.distribute(model, optimizer)
        return self._models[name]


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> tuple[int, int]:
    """One step; how long the backward pass and the optimizer (with what it waits for) took."""
    loss = model(batch).square().mean()
    began = _now()
    loss.backward()
    between = _now()
    optimizer.step()
    optimizer.zero_grad()
    return between - began, _now() - between


def main() -> None:
    """Join, serve."""
    options = options_of("benchmarks.training.worker")
    die_with(options.driver)
    torch.set_num_threads(1)
    trainer = TRAINERS[options.peer]()
    trainer.connect(options.directory)
    channel, ready = report_to(options.directory, trainer.rank, trainer.size)
    trainee = Trainee(trainer, ready)
    serve(channel, lambda message: trainee.run(Train(**message["parameters"])))


if __name__ == "__main__":
    main()
