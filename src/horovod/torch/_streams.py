"""When tensors are ready, and when a collective is done: all that differs between CPUs and GPUs.

A CPU's tensors are ready at once, and its collectives are waited for by waiting. A GPU's are computed by
kernels that are still queued: collectives go to a stream of their own, behind events of the callers' streams.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Tensor = torch.Tensor
Wanted = Callable[[], bool]

SLICE = datetime.timedelta(milliseconds=50)
POLL_SECONDS = 0.0001


class AbandonedError(Exception):
    """Nobody wants the work any more, and its collective may never end."""


class HostStreams:
    """Of CPUs."""

    device = torch.device("cpu")

    def mark(self, tensors: Sequence[Tensor]) -> Any:  # noqa: ARG002
        """Where the caller's computation is: what gave the tensors their values comes before it."""
        return None

    @contextmanager
    def behind(self, marks: Sequence[Any]) -> Iterator[None]:  # noqa: ARG002
        """In the block, operations come after these marks."""
        yield

    def wait(self, collective: Any, wanted: Wanted) -> None:
        """What follows sees the collective's results. ``AbandonedError`` once they are not wanted."""
        while True:
            try:
                collective.wait(SLICE)
                return
            except RuntimeError:  # it has failed, or it takes longer
                if collective.is_completed():
                    collective.wait()  # raises what it failed of; or it has ended since
                    return
                if not wanted():
                    raise AbandonedError from None

    def settle(self, wanted: Wanted) -> None:
        """Returns when everything is done."""

    def drain(self) -> None:
        """Returns when nothing touches tensors any more; the collectives have been aborted."""

    def take_over(self, results: Sequence[Tensor]) -> None:
        """The caller's thread gets tensors that were made in a block."""


class CudaStreams:
    """Of a GPU. Never run by the project's own tests: keep it small."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side: Any = torch.cuda.Stream(device)

    def mark(self, tensors: Sequence[Tensor]) -> Any:
        """See :class:`HostStreams`; so for all methods."""
        event: Any = torch.cuda.Event()
        event.record(torch.cuda.current_stream(tensors[0].device if tensors else self.device))
        return event

    @contextmanager
    def behind(self, marks: Sequence[Any]) -> Iterator[None]:
        with torch.cuda.stream(self._side):
            for event in marks:
                self._side.wait_event(event)
            yield

    def wait(self, collective: Any, wanted: Wanted) -> None:  # noqa: ARG002
        collective.wait()  # the side stream waits, not this thread

    def settle(self, wanted: Wanted) -> None:
        done = self._side.record_event()
        while not done.query():
            if not wanted():
                raise AbandonedError
            time.sleep(POLL_SECONDS)

    def drain(self) -> None:
        self._side.synchronize()

    def take_over(self, results: Sequence[Tensor]) -> None:
        for tensor in results:  # which belong to the side stream, where their memory would be used again
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


Streams = HostStreams | CudaStreams
