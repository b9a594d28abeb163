"""Which engine an operation goes to: by the device of its tensors."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from horovod import _native
from horovod._core import runtime
from horovod.torch._plane import Plane
from horovod.torch._work import one_device

Tensor = torch.Tensor

_lock = threading.Lock()
_plane: Plane | None = None  # of the current world, or one that has ended


def engine_for(tensor: Tensor) -> _native.Engine | Plane:
    """The engine that moves ``tensor``, or the ``torch`` plane."""
    running = runtime.current()
    if tensor.is_cpu and running.settings.cpu_operations != "torch":
        return running.engine
    return _plane_for(running, tensor.device)


def engine_for_group(tensors: Sequence[Tensor]) -> _native.Engine | Plane:
    """The engine that moves all these."""
    running = runtime.current()
    if not tensors or (running.settings.cpu_operations != "torch" and all(t.is_cpu for t in tensors)):
        return running.engine
    return _plane_for(running, one_device(tensors))


def prepare_to_join(device: int) -> None:
    """Once joined, this rank stands in for operations of the others, also for those on GPUs."""
    running = runtime.current()
    gpus = torch.cuda.is_available()
    if running.identity.size > 1 and (gpus or running.settings.cpu_operations == "torch"):
        executor = plane_of(running).executor()
        if gpus:
            executor.device = torch.device("cuda", device if device >= 0 else torch.cuda.current_device())


def plane_of(running: runtime.Runtime) -> Plane:
    """The ``torch`` plane of a world."""
    global _plane
    with _lock:
        if _plane is None or _plane.engine is not running.engine:
            _plane = Plane(running)
        return _plane


def _plane_for(running: runtime.Runtime, device: torch.device) -> Plane:
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"Tensors on {device} cannot be used; move them to the CPU, or to a CUDA device.")
    return plane_of(running)
