"""Latency of one small allreduce between 2 ranks: hot, cold, and on a machine that is busy.

hot: call after call. cold: 5 ms of compute on every rank before each call, as in training. loaded: call after
call while a compute process runs pinned on every core; loaded-free: the same, not pinned.
"""

from __future__ import annotations

import contextlib

from benchmarks.cases import Calls
from benchmarks.hogs import busy_cores
from benchmarks.results import Row
from benchmarks.session import Session

NAME = "latency"
SIZE = 2
COLD_MS = 5.0
STATES = ("hot", "cold", "loaded", "loaded-free")
BYTES = (4, 1024, 64 * 1024)


def run(session: Session) -> list[Row]:
    """All sizes in all states; a quick run has 4 bytes in the three states of the goals."""
    quick = session.options.quick
    rows: list[Row] = []
    for state in STATES[:3] if quick else STATES:
        loaded = state.startswith("loaded")
        with busy_cores(pinned=state == "loaded") if loaded else contextlib.nullcontext():
            for size in BYTES[:1] if quick else BYTES:
                case = Calls(size, gap_ms=COLD_MS if state == "cold" else 0.0)
                rows += session.measure_calls(NAME, "latency", case, SIZE, state=state, bytes=size)
    return rows
