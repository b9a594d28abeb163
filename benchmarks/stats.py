"""From what the ranks report to the numbers of a row. Pure functions.

The time of a call is its *completion*: from the moment the last rank arrived until the last rank had
returned. A rank that came early waits for the others (not the library's fault), and the last rank to arrive
may find everything ready and return at once while the others are still being woken (not to the library's
credit), so neither a rank's own time nor the shortest over the ranks says what the collective costs. Both
are kept beside it (`own_us`, `last_arrival_us`), and so is the whole loop's wall time per call without the
compute between calls (`loop_us`): a rank that was off its core between two calls shows there only.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Calls, Result, unpacked

Metrics = dict[str, float]
Times = npt.NDArray[np.int64]  # nanoseconds, a row per rank, a column per call

US = 1e3  # nanoseconds


def calls_metrics(case: Calls, results: Sequence[Result], communicates: bool) -> Metrics:
    """Summarise one round of calls on all ranks."""
    entered, returned = _times(results, "entered"), _times(results, "returned")
    own = returned - entered
    # Where nobody waits for anybody (memcpy), the slowest rank of each turn.
    times = returned.max(axis=0) - entered.max(axis=0) if communicates else own.max(axis=0)
    metrics = {
        "us": float(np.median(times)) / US,
        "mean_us": float(np.mean(times)) / US,
        "p99_us": float(np.quantile(times, 0.99)) / US,
        "loop_us": _loop_ns(case, entered, returned) / US,
        "last_arrival_us": float(np.median(own.min(axis=0))) / US,
        "own_us": float(np.median(own)) / US,
        "skew_us": float(np.median(entered.max(axis=0) - entered.min(axis=0))) / US,
        "calls": case.calls,
        "cpu_us": _per_call(case, results, "cpu_ns") / US,
        "voluntary_switches": _per_call(case, results, "voluntary"),
        "involuntary_switches": _per_call(case, results, "involuntary"),
    }
    metrics["GB/s"] = case.bytes * case.tensors / (metrics["us"] * US)
    if case.tensors > 1:
        submission = _times(results, "submitted") - entered
        metrics["submit_us"] = float(np.median(submission)) / case.tensors / US
    return metrics | _counters(case, results)


def _loop_ns(case: Calls, entered: Times, returned: Times) -> float:
    """Wall time from the first call to the last return, per call, the compute between calls subtracted."""
    computed = (case.calls - 1) * case.gap_ms * 1e6
    return (float(returned.max() - entered.min()) - computed) / case.calls


def _times(results: Sequence[Result], key: str) -> Times:
    return np.stack([unpacked(result[key]) for result in results])


def _per_call(case: Calls, results: Sequence[Result], key: str) -> float:
    return statistics.fmean(result[key] for result in results) / case.calls


def _counters(case: Calls, results: Sequence[Result]) -> Metrics:
    """The library's own counters per call, of the rank where they are highest."""
    keys = {key for result in results for key in result["counters"]}
    return {
        f"counter.{key}": max(result["counters"].get(key, 0) for result in results) / case.calls
        for key in sorted(keys)
    }


def median_of(rounds: Sequence[Metrics]) -> Metrics:
    """Metric by metric, the median over the rounds that have it."""
    keys = list(dict.fromkeys(key for metrics in rounds for key in metrics))
    return {key: statistics.median(m[key] for m in rounds if key in m) for key in keys}


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float | None:
    """Median over the rounds of the ratio within a round, so that a slow minute slows both."""
    pairs = ratios(numerator, denominator)
    return statistics.median(pairs) if pairs else None


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Round by round."""
    return [above / below for above, below in zip(numerator, denominator, strict=False) if below]


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """Between which values the middle half of them lies: how sure a median is."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)
