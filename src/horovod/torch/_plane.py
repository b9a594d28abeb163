"""The ``torch`` plane: torch.distributed moves the tensors, the engine decides what runs when.

It takes operations as the engine does, by the same methods, for tensors that the engine cannot reach: those
on GPUs; and for any, if ``HOROVOD_CPU_OPERATIONS`` is ``torch``. See ``docs/gpu.md``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from horovod._core import runtime
from horovod.torch._carrying import carry_out
from horovod.torch._executor import Executor
from horovod.torch._streams import CudaStreams, HostStreams, Streams
from horovod.torch._work import Order, Share, name_of, one_device

Tensor = torch.Tensor


class Plane:
    """Of one world. The methods are those of the engine."""

    def __init__(self, running: runtime.Runtime) -> None:
        self.engine = running.engine
        self._running = running
        self._lock = threading.Lock()
        self._executor: Executor | None = None

    def executor(self) -> Executor:
        """The executor, which is started when it is first needed."""
        with self._lock:
            if self._executor is None:
                running = self._running
                executor = Executor(running.engine, running.key, running.settings.start_timeout)
                runtime.at_end(executor.join)
                self._executor = executor
            return self._executor

    # -- Operations

    def allreduce_async(
        self,
        name: str | None,
        input: Tensor,
        output: Tensor,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
    ) -> int:
        options = {"op": op, "prescale": prescale, "postscale": postscale, "compression": compression}
        return self._submit("allreduce", name, [input], [output], False, process_set, **options)

    def grouped_allreduce_async(
        self,
        name: str | None,
        inputs: list[Tensor],
        outputs: list[Tensor],
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
    ) -> int:
        options = {"op": op, "prescale": prescale, "postscale": postscale, "compression": compression}
        return self._submit("allreduce", name, inputs, outputs, True, process_set, **options)

    def allgather_async(
        self, name: str | None, input: Tensor, _wrap: Any, process_set: int | None = 0
    ) -> int:
        return self._submit("allgather", name, [input], None, False, process_set)

    def grouped_allgather_async(
        self, name: str | None, inputs: list[Tensor], _wrap: Any, process_set: int | None = 0
    ) -> int:
        return self._submit("allgather", name, inputs, None, True, process_set)

    def broadcast_async(
        self, name: str | None, input: Tensor, output: Tensor, root: int, process_set: int | None = 0
    ) -> int:
        return self._submit("broadcast", name, [input], [output], False, process_set, root=root)

    def alltoall_async(
        self,
        name: str | None,
        input: Tensor,
        splits: list[int] | None,
        _wrap: Any,
        process_set: int | None = 0,
    ) -> int:
        return self._submit("alltoall", name, [input], None, False, process_set, splits=splits)

    def reducescatter_async(
        self,
        name: str | None,
        input: Tensor,
        _wrap: Any,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
    ) -> int:
        options = {"op": op, "prescale": prescale, "postscale": postscale, "compression": compression}
        return self._submit("reducescatter", name, [input], None, False, process_set, **options)

    def grouped_reducescatter_async(
        self,
        name: str | None,
        inputs: list[Tensor],
        _wrap: Any,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
    ) -> int:
        options = {"op": op, "prescale": prescale, "postscale": postscale, "compression": compression}
        return self._submit("reducescatter", name, inputs, None, True, process_set, **options)

    # -- The same, waiting

    def allreduce(self, *arguments: Any) -> Any:
        return self.engine.synchronize(self.allreduce_async(*arguments))

    def grouped_allreduce(self, *arguments: Any) -> Any:
        return self.engine.synchronize(self.grouped_allreduce_async(*arguments))

    def allgather(self, *arguments: Any) -> Any:
        return self.engine.synchronize(self.allgather_async(*arguments))

    def grouped_allgather(self, *arguments: Any) -> Any:
        return self.engine.synchronize(self.grouped_allgather_async(*arguments))

    def broadcast(self, *arguments: Any) -> Any:
        return self.engine.synchronize(self.broadcast_async(*arguments))

    def alltoall(self, *arguments: Any) -> Any:
        return self.engine.synchronize(self.alltoall_async(*arguments))

    def reducescatter(self, *arguments: Any) -> Any:
        return self.engine.synchronize(self.reducescatter_async(*arguments))

    def grouped_reducescatter(self, *arguments: Any) -> Any:
        return self.engine.synchronize(self.grouped_reducescatter_async(*arguments))

    # -- How

    def _submit(
        self,
        kind: str,
        name: str | None,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor] | None,
        grouped: bool,
        process_set: int | None,
        **options: Any,
    ) -> int:
        """Has the engine agree on it; ``outputs`` of operations that fill tensors of the caller."""
        tensors = [(name_of(tensor), tuple(tensor.shape)) for tensor in inputs]
        device = one_device([*inputs, *(outputs or ())]) if inputs else HostStreams.device
        share = Share([tensor.detach() for tensor in inputs], [tensor.detach() for tensor in outputs or ()])
        alone = self._is_alone(process_set)
        executor = None if alone else self.executor()
        streams = executor.streams_of(device) if executor is not None else _streams_of(device)
        share.mark = None if alone else streams.mark(share.inputs)

        def result() -> Any:
            found = list(outputs) if outputs is not None else share.results
            if outputs is None:
                streams.take_over(found)
            if kind == "alltoall":
                return found[0], share.received
            return found if grouped else found[0]

        handle = self.engine.submit_handed(
            kind,
            name,
            tensors,
            grouped,
            device.type != "cpu",
            executor.expect(share) if executor is not None else 0,
            result,
            process_set=process_set,
            **options,
        )
        if alone:
            self._run_alone(handle, kind, share, **options)
        return handle

    def _is_alone(self, process_set: int | None) -> bool:
        if self.engine.size == 1:
            return True
        return bool(process_set) and len(self.engine.process_sets().get(process_set or 0, [])) == 1

    def _run_alone(
        self,
        handle: int,
        kind: str,
        share: Share,
        root: int = 0,
        splits: list[int] | None = None,
        **reduction: Any,
    ) -> None:
        """Here and now: the engine, which has nothing to agree on, says that it is done."""
        if kind == "alltoall":
            share.numbers = [share.inputs[0].shape[0]] if splits is None else splits
        try:
            with torch.no_grad():
                carry_out(Order(kind, [root], root=root, **reduction), [share], None)
        except BaseException:
            self.engine.synchronize(handle)
            raise


def _streams_of(device: torch.device) -> Streams:
    return HostStreams() if device.type == "cpu" else CudaStreams(device)
