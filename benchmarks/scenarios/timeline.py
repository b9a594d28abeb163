"""What recording a timeline costs, 2 ranks: 100 async allreduces of 64 KiB per step; single ones of 1 MiB.

Two worlds that do the same may differ by more than the goal's two per cent (where their memory lies, which
cores they got), so a world does everything with and without a timeline, in turn; on several worlds.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cases import Calls
from benchmarks.results import Row
from benchmarks.session import Session
from benchmarks.units import KIB, MIB

NAME = "timeline"
SIZE = 2
WORLDS = 5
QUICK_WORLDS = 1
CASES = (Calls(64 * KIB, tensors=100), Calls(1 * MIB))


def run(session: Session) -> list[Row]:
    """World after world, each with all rounds; a quick run has one."""
    rows: list[Row] = []
    for _ in range(QUICK_WORLDS if session.options.quick else WORLDS):
        session.end_worlds()
        for case in CASES:
            key = {"tensors": case.tensors, "bytes": case.bytes}
            cases = [(replace(case, recording=on), key | {"recording": on}) for on in (False, True)]
            rows += session.measure_together(NAME, "timeline", cases, SIZE)
    session.end_worlds()
    return _joined([_named(row) for row in rows])


def _named(row: Row) -> Row:
    """What was measured without a timeline is `hvd`, though in the same world."""
    if not row.key.pop("recording"):
        row.peer = "hvd"
    return row


def _joined(rows: list[Row]) -> list[Row]:
    """One row per peer and case with the rounds of all worlds; a failure of any is one of the whole."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        whole = found.setdefault((row.peer, str(row.key)), row)
        if whole is not row:
            whole.rounds += row.rounds
            if row.status == "failed":
                whole.status, whole.error = row.status, row.error
    return [row.finish() for row in found.values()]
