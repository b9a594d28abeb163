"""An idle engine: processor time and context switches of a rank that sleeps after one allreduce.

All threads of the process count, the sleeping main thread's own two switches included.
"""

from __future__ import annotations

from benchmarks.cases import Idle, Result
from benchmarks.results import Row
from benchmarks.session import Session
from benchmarks.stats import Metrics

NAME = "idle"
SIZE = 2


def run(session: Session) -> list[Row]:
    """Ten seconds (three in a quick run) of two ranks doing nothing; the rank that does more is reported."""
    case = Idle(3.0 if session.options.quick else 10.0)
    return session.measure_fresh(NAME, case, SIZE, _metrics)


def _metrics(results: list[Result]) -> Metrics:
    return {
        "cpu_percent": max(result["cpu_ns"] / result["seconds"] / 1e9 * 100 for result in results),
        "wakeups_per_second": max(result["voluntary"] / result["seconds"] for result in results),
        "involuntary_per_second": max(result["involuntary"] / result["seconds"] for result in results),
        "threads": max(result["threads"] for result in results),
    }
