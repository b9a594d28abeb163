"""torch.distributed with its Gloo backend, on the loopback interface."""

from __future__ import annotations

import datetime
import importlib
from typing import Any

import numpy as np

from benchmarks.peers.base import (
    Array,
    Command,
    Compressing,
    Job,
    Place,
    importable,
    place_from_environment,
    ranks_by_environment,
)


class Gloo(Compressing):
    """`torch.distributed`'s functions on CPU tensors; its Gloo backend has all that are compared here."""

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
        if array.dtype.name == "bfloat16":  # ml_dtypes' type is none that torch knows
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
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

    def allgather(self, tensor: Any, name: str) -> Any:  # noqa: ARG002
        result = tensor.new_empty(self.size * tensor.numel())
        self._dist.all_gather_single(result, tensor)
        return result

    def alltoall(self, tensor: Any, name: str) -> Any:  # noqa: ARG002
        result = self._torch.empty_like(tensor)
        self._dist.all_to_all_single(result, tensor)
        return result

    def reducescatter(self, tensor: Any, name: str) -> Any:  # noqa: ARG002
        result = tensor.new_empty(tensor.numel() // self.size)
        self._dist.reduce_scatter_single(result, tensor)
        return result

    def broadcast(self, tensor: Any, name: str) -> None:  # noqa: ARG002
        self._dist.broadcast(tensor, 0)

    def compressed(self, tensor: Any, name: str) -> None:  # noqa: ARG002 - as DDP's fp16_compress_hook does
        half = tensor.to(self._torch.float16)
        self._dist.all_reduce(half)
        tensor.copy_(half)

    def close(self) -> None:
        self._dist.destroy_process_group()
