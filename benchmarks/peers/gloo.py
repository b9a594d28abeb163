"""torch.distributed with its Gloo backend, on the loopback interface."""

from __future__ import annotations

import datetime
import importlib
from typing import Any

from benchmarks.peers.base import (
    Array,
    Command,
    Job,
    Library,
    Place,
    importable,
    place_from_environment,
    ranks_by_environment,
)


class Gloo(Library):
    """`torch.distributed.all_reduce` on CPU tensors."""

    name = "gloo"

    def missing(self) -> str | None:
        return None if importable("torch") else "not installed"

    def launch(self, job: Job) -> list[Command]:
        return ranks_by_environment(job, GLOO_SOCKET_IFNAME="lo")

    def load(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        self._torch.set_num_threads(1)

    def connect(self, directory: str) -> None:
        self.rank, self.size = place_from_environment()
        self._dist.init_process_group(
            "gloo",
            init_method=f"file://{directory}/gloo",
            rank=self.rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=60),
        )

    def adopt(self, array: Array) -> Any:
        return self._torch.from_numpy(array)

    def in_place(self, tensor: Any, name: str) -> None:  # noqa: ARG002 - Gloo matches by order
        self._dist.all_reduce(tensor)

    def out_of_place(self, tensor: Any, name: str) -> Any:  # noqa: ARG002
        result = tensor.clone()
        self._dist.all_reduce(result)
        return result

    def submit(self, tensor: Any, name: str, place: Place) -> Any:  # noqa: ARG002
        target = tensor if place == "in" else tensor.clone()
        return self._dist.all_reduce(target, async_op=True)

    def wait(self, handle: Any) -> None:
        handle.wait()

    def close(self) -> None:
        self._dist.destroy_process_group()
