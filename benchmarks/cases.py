"""What one rank is asked to do: plain dataclasses that travel to the workers, each with its `run`.

Times are `time.monotonic_ns()`, one clock for all processes of the machine, so that the driver can relate one
rank's arrival to another's return. A case runs on every rank of a world at once; `ready` is a rendezvous of
all ranks through the driver, used between warming up and measuring.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from benchmarks import procfs, steps
from benchmarks.peers.base import Format, Library, Operation, Peer, Place, Recording

Result = dict[str, Any]
Ready = Callable[[], None]

_now = time.monotonic_ns


@dataclass(frozen=True)
class Context:
    """What the worker gives to a case."""

    peer: Peer
    ready: Ready
    connect_growth: dict[str, int]


@dataclass(frozen=True)
class Calls:
    """`calls` times: compute for `gap_ms`, then `operation` on `tensors` tensors of `bytes` bytes each.

    One tensor is a synchronous call; several are allreduces, submitted asynchronously and then waited for.
    """

    kind: ClassVar[str] = "calls"
    bytes: int
    place: Place = "in"
    tensors: int = 1
    gap_ms: float = 0.0
    calls: int = 10
    warmup: int = 2
    operation: Operation = "allreduce"
    format: Format = "float32"
    recording: bool = False  # a timeline, warming up included

    def run(self, context: Context) -> Result:
        """Check what it gives, warm up, meet the others, and time every call."""
        peer = context.peer
        arrays = [steps.array(self.bytes, self.format, peer.rank, peer.size) for _ in range(self.tensors)]
        tensors = [peer.adopt(array) for array in arrays]
        step = steps.step(peer, tensors, self.place, self.operation, self.format)
        steps.check(peer, self.operation, arrays, step()[1])
        for array in arrays:
            array.fill(0)
        with _recording(peer) if self.recording else nullcontext():
            for _ in range(self.warmup):
                step()
            context.ready()
            return self._measure(peer, step)

    def _measure(self, peer: Peer, step: steps.Step) -> Result:
        counters = peer.counters() if isinstance(peer, Library) else {}
        switches, cpu = procfs.context_switches(), time.process_time_ns()
        entered, submitted, returned = [], [], []
        for _ in range(self.calls):
            if self.gap_ms:
                _compute(self.gap_ms)
            entered.append(_now())
            at_submit, _ = step()
            returned.append(_now())
            submitted.append(at_submit)
        cpu = time.process_time_ns() - cpu
        after = procfs.context_switches()
        later = peer.counters() if isinstance(peer, Library) else {}
        return {
            "entered": packed(entered),
            "submitted": packed(submitted),
            "returned": packed(returned),
            "cpu_ns": cpu,
            "voluntary": after["voluntary"] - switches["voluntary"],
            "involuntary": after["involuntary"] - switches["involuntary"],
            "counters": {key: value - counters.get(key, 0) for key, value in later.items()},
        }


@dataclass(frozen=True)
class Idle:
    """After one allreduce, sleep, and say what the process used meanwhile, all its threads together."""

    kind: ClassVar[Literal["idle"]] = "idle"
    seconds: float

    def run(self, context: Context) -> Result:
        """Let things settle for half a second, then watch."""
        context.peer.in_place(context.peer.adopt(np.ones(1, np.float32)), "idle")
        time.sleep(0.5)
        before, cpu = procfs.context_switches(), time.process_time_ns()
        time.sleep(self.seconds)
        cpu = time.process_time_ns() - cpu
        after = procfs.context_switches()
        switches = {key: after[key] - before[key] for key in ("voluntary", "involuntary")}
        return {"seconds": self.seconds, "cpu_ns": cpu, "threads": after["threads"], **switches}


@dataclass(frozen=True)
class Memory:
    """How much a rank grows by joining the world and by `calls` allreduces, the tensors themselves aside."""

    kind: ClassVar[Literal["memory"]] = "memory"
    bytes: int
    place: Place = "in"
    calls: int = 3

    def run(self, context: Context) -> Result:
        """Allocate first, then count what comes on top; results of out-of-place calls are dropped at once."""
        peer = context.peer
        tensor = peer.adopt(np.ones(self.bytes // 4, np.float32))
        step = steps.step(peer, [tensor], self.place, "allreduce", "float32")
        procfs.reset_peak()
        before = procfs.memory()
        for _ in range(self.calls):
            step()
        after = procfs.memory()
        calls = {key: after[key] - before[key] for key in after}
        calls["peak"] = after["peak"] - before["rss"]
        return {"connect": context.connect_growth, "calls": calls}


def packed(times: list[int]) -> str:
    """Nanoseconds as text that is quick to send."""
    return base64.b64encode(np.array(times, np.int64).tobytes()).decode()


def unpacked(text: str) -> npt.NDArray[np.int64]:
    """What `packed` packed."""
    return np.frombuffer(base64.b64decode(text), np.int64)


Case = Calls | Idle | Memory
CASES: dict[str, type[Case]] = {case.kind: case for case in (Calls, Idle, Memory)}


def _recording(peer: Peer) -> AbstractContextManager[None]:
    assert isinstance(peer, Recording)
    return peer.recording()


def _compute(milliseconds: float) -> None:
    """Keep the core and its caches busy, as training would."""
    end = _now() + int(milliseconds * 1e6)
    while _now() < end:
        np.multiply(_WORK, 1.0000001, out=_WORK)


_WORK = np.ones(64 * 1024, np.float32)
