"""Who reduces the gradients of ``model.fit``: Khorovod, MultiWorkerMirroredStrategy, or nobody."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import socket
from abc import ABC
from typing import Any

from benchmarks.peers.base import (
    Command,
    Job,
    one_process_per_rank,
    place_from_environment,
    ranks_by_environment,
)
from benchmarks.peers.hvd import rank_variables

# tf_keras for all of them: MultiWorkerMirroredStrategy has no fit() with Keras 3.
COMMON = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}


class Trainer(ABC):
    """A way to train on several ranks. The driver's half imports no TensorFlow."""

    name: str
    rank: int
    size: int
    share = 1
    """How many ranks' rows a batch has."""

    def launch(self, job: Job) -> list[Command]:
        """The processes of one world."""
        return ranks_by_environment(job, **COMMON)

    def connect(self) -> None:
        """Join the world."""
        self.rank, self.size = place_from_environment()

    def scope(self) -> Any:
        """Where the model is made."""
        return contextlib.nullcontext()

    def distribute(self, optimizer: Any) -> Any:
        """What the model is compiled with."""
        return optimizer


class Silent(Trainer):
    """Copies that do not know of each other: what training costs without communication."""

    name = "silent"


class Hvd(Trainer):
    """`hvd.DistributedOptimizer`."""

    name = "hvd"

    def launch(self, job: Job) -> list[Command]:
        identity = secrets.token_hex(16)
        return one_process_per_rank(job, lambda rank: {**rank_variables(rank, job.size, identity), **COMMON})

    def connect(self) -> None:
        self.hvd: Any = importlib.import_module("horovod.tensorflow")
        self.hvd.init()
        self.rank, self.size = self.hvd.rank(), self.hvd.size()

    def distribute(self, optimizer: Any) -> Any:
        return self.hvd.DistributedOptimizer(optimizer)


class Mirrored(Trainer):
    """`tf.distribute.MultiWorkerMirroredStrategy`: a ring over gRPC."""

    name = "mirrored"

    def launch(self, job: Job) -> list[Command]:
        with contextlib.ExitStack() as stack:  # all at once, so that they differ
            sockets = [stack.enter_context(socket.socket()) for _ in range(job.size)]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        commands = ranks_by_environment(job, **COMMON)
        for rank, command in enumerate(commands):
            task = {"type": "worker", "index": rank}
            command.env["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        return commands

    def connect(self) -> None:
        import tensorflow as tf

        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        config = json.loads(os.environ["TF_CONFIG"])
        self.rank, self.size = config["task"]["index"], len(config["cluster"]["worker"])
        self.share = self.size  # it deals a batch out to the ranks

    def scope(self) -> Any:
        return self._strategy.scope()


TRAINERS: dict[str, type[Trainer]] = {trainer.name: trainer for trainer in (Silent, Hvd, Mirrored)}
