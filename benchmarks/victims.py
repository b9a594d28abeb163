"""A rank of the faults scenario: `python -m benchmarks.victims DIRECTORY [DEED]`, by whatever launcher.

It reduces until something happens. A rank with a deed writes down the time and does it; any other writes down
the time at which it got its error. All times are the machine's monotonic clock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

WARM_CALLS = 5
DEED_CALLS = 20


def main(directory: Path, deed: str = "") -> None:
    """Join, say so, reduce."""
    import horovod.numpy as hvd

    hvd.init()
    tensor = np.ones(1 << 18, np.float32)
    try:
        for _ in range(WARM_CALLS):
            hvd.allreduce(tensor, op=hvd.Sum, name="warm")
        note(directory / f"pid.{hvd.rank()}", os.getpid())
        calls = 0
        while not deed or calls < DEED_CALLS:
            hvd.allreduce(tensor, op=hvd.Sum, name="step")
            calls += 1
    except hvd.HorovodInternalError:
        note(directory / f"error.{hvd.rank()}", time.monotonic_ns())
        raise
    note(directory / "deed", time.monotonic_ns())
    DEEDS[deed]()


def note(path: Path, value: int) -> None:
    """Write a number; whoever sees the file sees all of it."""
    unfinished = path.with_suffix(f"{path.suffix}.tmp")
    unfinished.write_text(str(value))
    unfinished.rename(path)


def _raise() -> None:
    raise ValueError("an exception of the user's script")


DEEDS: dict[str, Callable[[], object]] = {
    "os._exit": lambda: os._exit(3),
    "exit": lambda: sys.exit(0),
    "raise": _raise,
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
