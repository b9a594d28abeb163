"""Private groups of torch.distributed: Gloo for tensors on CPUs, NCCL for those on GPUs.

They are made directly, without the default group, which is the program's own. The ranks find each other
through a file in a directory that only this user can read, under a name that only this world knows. All
tensors here are bytes: what is reduced is reduced by whoever has gathered it, but for what NCCL can reduce.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import importlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from horovod._core.reduction import Average, Max, Min, Product, Sum
from horovod.torch._streams import AbandonedError, CudaStreams, Streams, Wanted

Tensor = torch.Tensor

PATIENCE = datetime.timedelta(days=7)
"""For a collective: the engine watches the peers, and knows better."""
CONNECTING = datetime.timedelta(seconds=10)
"""For ranks that are all at it."""
CLOSING_SECONDS = 5.0
"""How long a collective that is under way may take to end."""
LOOPBACK = "127.0.0.1"
"""All ranks are on one machine."""

_backends: set[Any] = set()  # all that live

NATIVE_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NATIVE_REDUCTIONS = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PRODUCT"}


@functools.cache
def c10d() -> Any:
    """What torch.distributed is made of; not every build of PyTorch has it."""
    return importlib.import_module("torch._C._distributed_c10d")


class Group:
    """The members of a process set, connected."""

    def __init__(
        self, directory: str, index: int, size: int, streams: Streams, wanted: Wanted, seconds: float
    ) -> None:
        self.index, self.size, self.streams = index, size, streams
        self._wanted = wanted
        self._backend: Any = None
        self._under_way: Any = None
        self.on_gpu = isinstance(streams, CudaStreams)
        self.reduces = NATIVE_TYPES if self.on_gpu else ()
        """Types that the backend reduces itself, in an order of its own."""
        self._directory = directory
        try:
            meet(directory, index, size, wanted, seconds)
            store = c10d().FileStore(os.path.join(directory, "store"), size)
            store.set_timeout(datetime.timedelta(seconds=seconds) if self.on_gpu else CONNECTING)
            self._backend = (_nccl if self.on_gpu else _gloo)(store, index, size)
            _backends.add(self._backend)
            # When all have sent something all are connected, and Gloo needs the file no more.
            self.gather(torch.zeros(1, dtype=torch.uint8, device=streams.device), [1] * size)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            self.close(time.monotonic() + CLOSING_SECONDS)
            raise
        if not self.on_gpu:
            self.forget_directory()

    def forget_directory(self) -> None:
        """Removes the file by which the members found each other."""
        if self.index == 0:
            shutil.rmtree(self._directory, ignore_errors=True)

    def close(self, end: float) -> None:
        """Closes the connections, so that members which wait for this rank do so no longer.

        There is no farewell, as they may be in a collective that this rank will never come to. What it has
        sent reaches them all the same. Before ``end``: a backend cannot be taken apart while a collective is
        under way, and one that was abandoned may never end (Gloo's cannot be told to). Then it is left alone.
        """
        self.forget_directory()
        if self.on_gpu and self._backend is not None:
            self._backend.abort()
        while self._under_way is not None and not self._under_way.is_completed():
            if time.monotonic() > end:
                _leak(self._backend)
                break
            time.sleep(0.001)
        _backends.discard(self._backend)
        self._backend = None

    def exchange(self, given: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Sends so many bytes to each member; what comes from each, one after the other."""
        output = given.new_empty(sum(received))
        options = c10d().AllToAllOptions()
        self._wait(self._backend.alltoall_base(output, given, list(received), list(sent), options))
        return output

    def gather(self, block: Tensor, sizes: Sequence[int]) -> Tensor:
        """The bytes of all members, one after the other; they may differ in number."""
        whole = block.new_empty(sum(sizes))
        if len(set(sizes)) == 1:
            if sizes[0] > 0:
                self._wait(self._backend._allgather_base(whole, block, c10d().AllgatherOptions()))
            return whole
        parts = torch.split(whole, list(sizes))
        parts[self.index].copy_(block)
        for member, part in enumerate(parts):
            self.broadcast(part, member)
        return whole

    def broadcast(self, data: Tensor, root: int) -> None:
        """The bytes of one member, in place."""
        if data.numel() == 0:
            return
        options = c10d().BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._wait(self._backend.broadcast([data], options))

    def allreduce(self, tensor: Tensor, op: int) -> None:
        """Reduces in place; only of types in ``reduces``."""
        options = c10d().AllreduceOptions()
        options.reduceOp = getattr(c10d().ReduceOp, NATIVE_REDUCTIONS[op])
        self._wait(self._backend.allreduce([tensor], options))

    def _wait(self, collective: Any) -> None:
        self._under_way = collective
        self.streams.wait(collective, self._wanted)


def _leak(thing: Any) -> None:
    """Has an object live for ever, also beyond the interpreter's end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _after_fork_in_child() -> None:
    # Their threads are the parent's: a child that took them apart would wait for those for ever.
    for backend in _backends:
        _leak(backend)


os.register_at_fork(after_in_child=_after_fork_in_child)


def directory_of(key: str, plan: int) -> str:
    """Where the members of a group meet that is made for a plan: the same on all of them."""
    return os.path.join(tempfile.gettempdir(), f"horovod-{key}-{plan}")


def meet(directory: str, index: int, size: int, wanted: Wanted, seconds: float) -> None:
    """Waits until all members are here: what connects them cannot be interrupted."""
    make_directory(directory)
    Path(directory, str(index)).touch()
    end = time.monotonic() + seconds
    while missing := [member for member in range(size) if not os.path.exists(f"{directory}/{member}")]:
        if not wanted():
            raise AbandonedError
        if time.monotonic() > end:
            raise TimeoutError(
                f"{len(missing)} of {size} ranks did not come to {directory} within {seconds:g} seconds; "
                "all ranks must have the same directory for temporary files (TMPDIR)"
            )
        time.sleep(0.001)


def make_directory(path: str) -> None:
    """Makes a directory that only this user can read, or finds the one that another member made."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} belongs to somebody else, or others can read it")


def _gloo(store: Any, index: int, size: int) -> Any:
    options = c10d().ProcessGroupGloo._Options()
    options._devices = [c10d().ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._threads = 1
    options._timeout = PATIENCE
    return c10d().ProcessGroupGloo(store, index, size, options)


def _nccl(store: Any, index: int, size: int) -> Any:
    if not hasattr(c10d(), "ProcessGroupNCCL"):
        raise RuntimeError("this build of PyTorch has no NCCL; move the tensors to the CPU")
    options = c10d().ProcessGroupNCCL.Options()
    options._timeout = PATIENCE
    # Its own watchdog would end the process where the engine raises an error that can be caught.
    with _environment(TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0"):
        return c10d().ProcessGroupNCCL(store, index, size, options)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
