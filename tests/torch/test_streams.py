"""Streams: how waiting for a collective ends; and the order of calls on a GPU, which is a fake here."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from horovod.torch._streams import AbandonedError, CudaStreams, HostStreams


class Collective:
    """Ends when it has been waited for so often."""

    def __init__(self, slices: int, error: str = "") -> None:
        self.left, self.error = slices, error

    def is_completed(self) -> bool:
        return self.left <= 0

    def wait(self, _slice: datetime.timedelta | None = None) -> None:
        self.left -= 1
        if self.left > 0:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)


@pytest.mark.parametrize("slices", [1, 5])
def test_a_host_waits_as_long_as_it_takes(slices: int) -> None:
    HostStreams().wait(Collective(slices), lambda: True)


@pytest.mark.parametrize("slices", [1, 5])
def test_a_failure_is_told(slices: int) -> None:
    with pytest.raises(RuntimeError, match="connection closed"):
        HostStreams().wait(Collective(slices, "connection closed"), lambda: True)


def test_what_nobody_wants_is_abandoned() -> None:
    answers = iter([True, True, False])
    with pytest.raises(AbandonedError):
        HostStreams().wait(Collective(1000), lambda: next(answers))


class FakeCuda:
    """Stands for ``torch.cuda``: writes down what is asked of it."""

    def __init__(self, steps_until_done: int) -> None:
        self.log: list[str] = []
        self._left = steps_until_done
        self._events = 0

    def Event(self) -> Any:
        self._events += 1
        name = f"event {self._events}"
        return SimpleNamespace(
            name=name,
            record=lambda stream: self.log.append(f"{stream.name} records {name}"),
            query=self._query,
        )

    def Stream(self, device: torch.device) -> Any:  # noqa: ARG002
        return SimpleNamespace(
            name="side",
            wait_event=lambda event: self.log.append(f"side waits for {event.name}"),
            record_event=self._record_on_side,
            synchronize=lambda: self.log.append("host waits for side"),
        )

    def current_stream(self, device: torch.device) -> Any:  # noqa: ARG002
        return SimpleNamespace(name="main")

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append(f"enter {stream.name}")
        yield
        self.log.append(f"leave {stream.name}")

    def _record_on_side(self) -> Any:
        event = self.Event()
        event.record(SimpleNamespace(name="side"))
        return event

    def _query(self) -> bool:
        self._left -= 1
        return self._left < 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A GPU that needs a while."""
    cuda = FakeCuda(3)
    monkeypatch.setattr(torch, "cuda", cuda)
    return cuda


def test_a_collective_comes_after_what_it_needs(fake: FakeCuda) -> None:
    streams = CudaStreams(torch.device("cuda", 0))
    mark = streams.mark([torch.ones(1)])
    with streams.behind([mark]):
        streams.wait(SimpleNamespace(wait=lambda: fake.log.append("side waits for NCCL")), lambda: True)
        streams.settle(lambda: True)
    assert fake.log == [
        "main records event 1",
        "enter side",
        "side waits for event 1",
        "side waits for NCCL",
        "side records event 2",
        "leave side",
    ]


def test_a_gpu_is_not_waited_for_in_vain(fake: FakeCuda) -> None:
    streams = CudaStreams(torch.device("cuda", 0))
    with pytest.raises(AbandonedError):
        streams.settle(lambda: False)
    streams.drain()
    assert fake.log[-1] == "host waits for side"


def test_results_belong_to_the_callers_stream(fake: FakeCuda) -> None:  # noqa: ARG001
    seen: list[str] = []
    result: Any = SimpleNamespace(device="cuda:0", record_stream=lambda stream: seen.append(stream.name))
    CudaStreams(torch.device("cuda", 0)).take_over([result])
    assert seen == ["main"]
