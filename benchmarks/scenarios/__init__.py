"""The scenarios, one file each: a name, what it is about, and `run(session) -> rows`."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.results import Row
from benchmarks.scenarios import (
    bandwidth,
    batches,
    faults,
    halves,
    idle,
    latency,
    memory,
    operations,
    startup,
    timeline,
)
from benchmarks.session import Session


@dataclass(frozen=True)
class Scenario:
    """Something that `--only` can name."""

    name: str
    about: str
    run: Callable[[Session], list[Row]]


ALL = tuple(
    Scenario(module.NAME, (module.__doc__ or "").splitlines()[0], module.run)
    for module in (latency, batches, bandwidth, operations, halves, timeline, startup, idle, memory, faults)
)
