"""Who reduces the gradients: Khorovod, DDP, or nobody."""

from __future__ import annotations

import datetime
import importlib
import secrets
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.base import (
    Command,
    Job,
    one_process_per_rank,
    place_from_environment,
    ranks_by_environment,
)
from benchmarks.peers.hvd import rank_variables
from benchmarks.peers.hvd_timeline import FILE, SETTING, recorded

Step = tuple[torch.nn.Module, torch.optim.Optimizer]


class Trainer(ABC):
    """A way to train on several ranks."""

    name: str
    rank: int
    size: int

    def launch(self, job: Job) -> list[Command]:
        """The processes of one world."""
        return ranks_by_environment(job, GLOO_SOCKET_IFNAME="lo")

    def connect(self, directory: str) -> None:  # noqa: ARG002
        """Join the world."""
        self.rank, self.size = place_from_environment()

    @abstractmethod
    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        """What is trained instead of the two."""

    def recording(self) -> AbstractContextManager[None]:
        """Records a timeline of what is done meanwhile."""
        raise NotImplementedError(f"{self.name} has no timeline")


class Silent(Trainer):
    """Copies that do not know of each other: what training costs without communication."""

    name = "silent"

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        return model, optimizer


class Hvd(Trainer):
    """`hvd.DistributedOptimizer`."""

    name = "hvd"
    options: dict[str, Any] = {}  # noqa: RUF012

    def launch(self, job: Job) -> list[Command]:
        identity = secrets.token_hex(16)
        timeline = {"HOROVOD_TIMELINE": SETTING}
        return one_process_per_rank(job, lambda rank: rank_variables(rank, job.size, identity) | timeline)

    def connect(self, directory: str) -> None:
        self._file = Path(directory) / FILE
        self._hvd: Any = importlib.import_module("horovod.torch")
        self._hvd.init()
        self.rank, self.size = self._hvd.rank(), self._hvd.size()

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        hvd = self._hvd
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        names = model.named_parameters()
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=names, **self.options)

    def recording(self) -> AbstractContextManager[None]:
        return recorded(self._hvd, self._file)


class Ddp(Trainer):
    """`torch.nn.parallel.DistributedDataParallel` on Gloo."""

    name = "ddp"

    def connect(self, directory: str) -> None:
        super().connect(directory)
        self._dist: Any = importlib.import_module("torch.distributed")
        self._dist.init_process_group(
            "gloo",
            init_method=f"file://{directory}/gloo",
            rank=self.rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=60),
        )

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        return torch.nn.parallel.DistributedDataParallel(model), optimizer


TRAINERS: dict[str, type[Trainer]] = {trainer.name: trainer for trainer in (Silent, Hvd, Ddp)}
