"""What recording a timeline costs, 2 ranks: 100 async allreduces of 64 KiB per step; single ones of 1 MiB.

Two worlds that do the same may differ by more than the goal's two per cent (where their memory lies, which
cores they got), so everything is measured on several pairs of fresh worlds.
"""

from __future__ import annotations

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
    """Pair after pair of worlds, each with all rounds; a quick run has one pair."""
    rows: list[Row] = []
    for _ in range(QUICK_WORLDS if session.options.quick else WORLDS):
        session.end_worlds()
        for case in CASES:
            rows += session.measure_calls(
                NAME, "timeline", case, SIZE, tensors=case.tensors, bytes=case.bytes
            )
    session.end_worlds()
    return _joined(rows)


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
