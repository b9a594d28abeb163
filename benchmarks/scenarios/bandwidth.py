"""Large float32 sums, 1 to 256 MiB, in and out of place, at 2, 3 and 4 ranks; memcpy is the limit.

Out of place, a new result is made for every call, its first touch included: that is what callers get.
"""

from __future__ import annotations

from itertools import product

from benchmarks.cases import Calls
from benchmarks.peers import Place
from benchmarks.results import Row
from benchmarks.session import Session

NAME = "bandwidth"
MIB = 1 << 20
SIZES = (2, 3, 4)
BYTES = tuple(mib * MIB for mib in (1, 4, 16, 64, 256))
PLACES: tuple[Place, ...] = ("in", "out")


def run(session: Session) -> list[Row]:
    """Everything at 2 ranks, then at 3, then at 4; a quick run has 1, 16 and 64 MiB at 2 and 4 ranks."""
    quick = session.options.quick
    rows: list[Row] = []
    for size in (2, 4) if quick else SIZES:
        for length, place in product(_lengths(quick), PLACES):
            case = Calls(length, place=place)
            rows += session.measure_calls(NAME, "bandwidth", case, size, bytes=length)
        session.end_worlds()
    return rows


def _lengths(quick: bool) -> tuple[int, ...]:
    return (1 * MIB, 16 * MIB, 64 * MIB) if quick else BYTES
