"""What is to happen in a job: the operations of all ranks, step by step, and the faults among them.

A script is plain data and travels to the ranks as JSON.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEADLY = (
    "kill",
    "exit 0 at once",
    "exit 3 at once",
    "segfault",
    "abort",
    "terminate",
    "fork and die",
    "raise",
)
"""Kinds of fault that end the rank as a failure; all but the second with a code that says so."""

LEAVING = ("leave", "shut down")
"""The rank leaves the world too early, in good order."""

HARMLESS = ("stop", "sleep", "slow", "close stdout", "fork")
"""The others may have to wait, and that is all."""

KINDS = (*DEADLY, *LEAVING, *HARMLESS)
GUILTY = frozenset((*DEADLY, *LEAVING))
EXIT_CODES = {
    "kill": -9,
    "exit 0 at once": 0,
    "exit 3 at once": 3,
    "segfault": -11,
    "abort": -6,
    "terminate": -15,
    "fork and die": -9,
    "raise": 1,
    "leave": 0,
    "shut down": 0,
}
"""How a guilty rank ends; negative for a signal."""

FAILED = 7
"""The exit code of a rank that has got an error for what another one did."""

OPERATIONS = (
    "small",
    "large",
    "many",
    "in place",
    "grouped",
    "broadcast",
    "allgather",
    "alltoall",
    "reducescatter",
    "barrier",
    "objects",
    "evens",
)
MOMENTS = ("before", "during")
LAUNCHERS = ("none", "horovodrun")


@dataclass(frozen=True)
class Fault:
    """What rank ``rank`` does at step ``step``, whose operation it names: before it, or in its middle."""

    rank: int
    step: int
    operation: str
    kind: str
    moment: str = "before"
    seconds: float = 0.0
    """How long it sleeps or is stopped; for a deed in the middle, how far into the operation."""


@dataclass(frozen=True)
class Script:
    """A job: every rank goes through ``operations``, the first of which is "init", the last "shutdown"."""

    size: int
    plane: str
    operations: tuple[str, ...]
    faults: tuple[Fault, ...]
    launcher: str = "none"

    def __post_init__(self) -> None:
        if (self.operations[0], self.operations[-1]) != ("init", "shutdown"):
            raise ValueError("a script begins with init and ends with shutdown")
        for fault in self.faults:
            if fault.kind not in KINDS or fault.moment not in MOMENTS or not 0 <= fault.rank < self.size:
                raise ValueError(f"no such fault: {fault}")
            if self.operations[fault.step] != fault.operation:
                raise ValueError(f"step {fault.step} is {self.operations[fault.step]!r}: {fault}")

    def of(self, rank: int, step: int) -> list[Fault]:
        """The faults of a rank at a step."""
        return [fault for fault in self.faults if (fault.rank, fault.step) == (rank, step)]

    def dumps(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def loads(cls, text: str) -> Script:
        """What ``dumps`` has written."""
        data: dict[str, Any] = json.loads(text)
        faults = tuple(Fault(**fault) for fault in data.pop("faults"))
        return cls(**{**data, "operations": tuple(data["operations"])}, faults=faults)

    @classmethod
    def load(cls, path: Path) -> Script:
        """From a file."""
        return cls.loads(path.read_text())


def random_script(seed: str) -> Script:
    """Some job with no, one or two faults; the same for the same seed."""
    rng = random.Random(seed)
    size = rng.choice((2, 2, 3, 4))
    steps = rng.randint(1, 12)
    # The barrier: a rank that has no part in the last operation must not leave while others are at it.
    operations = ("init", *(rng.choice(OPERATIONS) for _ in range(steps)), "barrier", "shutdown")
    faults = tuple(_random_fault(rng, size, operations) for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 2, 2))))
    launcher = rng.choice(("none", "none", "none", "horovodrun"))
    return Script(size, rng.choice(("shm", "tcp")), operations, faults, launcher)


def _random_fault(rng: random.Random, size: int, operations: tuple[str, ...]) -> Fault:
    # A fault at init costs the others their start timeout: rarely. At shutdown there is little to disturb.
    step = rng.choice((0, len(operations) - 1)) if rng.random() < 0.05 else rng.randrange(1, len(operations))
    kind = rng.choice(KINDS)
    seconds = rng.choice((0.0, 0.001, 0.01, 0.1, rng.uniform(0, 0.3)))
    return Fault(rng.randrange(size), step, operations[step], kind, rng.choice(MOMENTS), round(seconds, 4))
