"""Memory of the engine per rank: what joining and large allreduces add, the tensors themselves aside.

Resident bytes count shared pages in full on every rank that touched them; `pss_mb` shares them out. `peak_mb`
is the highest point during the calls. Results of out-of-place calls count while they live (at the peak);
what stays afterwards is the pool.
"""

from __future__ import annotations

from benchmarks.cases import Memory, Result
from benchmarks.peers import Place
from benchmarks.results import Row
from benchmarks.session import Session
from benchmarks.stats import Metrics

NAME = "memory"
SIZE = 2
MB = 1e6
PLACES: tuple[Place, ...] = ("in", "out")


def run(session: Session) -> list[Row]:
    """256 MiB (32 MiB in a quick run) on two ranks."""
    length = (32 if session.options.quick else 256) << 20
    rows: list[Row] = []
    for place in PLACES:
        case = Memory(length, place)
        rows += session.measure_fresh(NAME, case, SIZE, _metrics, place=place, bytes=length)
    return rows


def _metrics(results: list[Result]) -> Metrics:
    def worst(kind: str, *steps: str) -> float:
        totals: list[int] = [sum(result[step][kind] for step in steps) for result in results]
        return max(totals) / MB

    return {
        "engine_mb": worst("rss", "connect", "calls"),
        "init_mb": worst("rss", "connect"),
        "peak_mb": max(r["connect"]["rss"] + r["calls"]["peak"] for r in results) / MB,
        "shared_mb": worst("shared", "connect", "calls"),
        "pss_mb": worst("pss", "connect", "calls"),
    }
