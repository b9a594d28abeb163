"""From what the ranks report to the numbers of a row. Pure functions.

The time of a call is its *completion*: from the moment the last rank arrived until the last rank had
returned. A rank that came early waits for the others (not the library's fault), and the last rank to arrive
may find everything ready and return at once while the others are still being woken (not to the library's
credit), so neither a rank's own time nor the shortest over the ranks says what the collective costs. Both
are kept beside it (`own_us`, `last_arrival_us`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.cases import Calls, Result

Metrics = dict[str, float]

US = 1e3  # nanoseconds


def calls_metrics(case: Calls, results: Sequence[Result], communicates: bool) -> Metrics:
    """Summarise one round of calls on all ranks."""
    entered = list(zip(*(result["entered"] for result in results), strict=True))
    returned = list(zip(*(result["returned"] for result in results), strict=True))
    own = [
        [leave - enter for enter, leave in zip(result["entered"], result["returned"], strict=True)]
        for result in results
    ]
    if communicates:
        times = [max(leave) - max(enter) for enter, leave in zip(entered, returned, strict=True)]
    else:  # nobody waits for anybody: the slowest rank of each turn
        times = [max(turn) for turn in zip(*own, strict=True)]
    metrics = {
        "us": statistics.median(times) / US,
        "mean_us": statistics.fmean(times) / US,
        "p99_us": quantile(times, 0.99) / US,
        "last_arrival_us": statistics.median(min(turn) for turn in zip(*own, strict=True)) / US,
        "own_us": statistics.median(value for rank in own for value in rank) / US,
        "skew_us": statistics.median(max(enter) - min(enter) for enter in entered) / US,
        "calls": case.calls,
        "cpu_us": _per_call(case, results, "cpu_ns") / US,
        "voluntary_switches": _per_call(case, results, "voluntary"),
        "involuntary_switches": _per_call(case, results, "involuntary"),
    }
    metrics["GB/s"] = case.bytes * case.tensors / (metrics["us"] * US)
    if case.tensors > 1:
        metrics["submit_us"] = _submit_ns(results) / case.tensors / US
    return metrics | _counters(case, results)


def _per_call(case: Calls, results: Sequence[Result], key: str) -> float:
    return statistics.fmean(result[key] for result in results) / case.calls


def _submit_ns(results: Sequence[Result]) -> float:
    """The median time that a rank spent in submitting one batch."""
    times: list[int] = [
        after - before
        for result in results
        for before, after in zip(result["entered"], result["submitted"], strict=True)
    ]
    return statistics.median(times)


def _counters(case: Calls, results: Sequence[Result]) -> Metrics:
    """The library's own counters per call, of the rank where they are highest."""
    keys = {key for result in results for key in result["counters"]}
    return {
        f"counter.{key}": max(result["counters"].get(key, 0) for result in results) / case.calls
        for key in sorted(keys)
    }


def quantile(values: Iterable[float], fraction: float) -> float:
    """The value below which `fraction` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def median_of(rounds: Sequence[Metrics]) -> Metrics:
    """Metric by metric, the median over the rounds that have it."""
    keys = list(dict.fromkeys(key for metrics in rounds for key in metrics))
    return {key: statistics.median(m[key] for m in rounds if key in m) for key in keys}


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float | None:
    """Median over the rounds of the ratio within a round, so that a slow minute slows both."""
    pairs = [above / below for above, below in zip(numerator, denominator, strict=False) if below]
    return statistics.median(pairs) if pairs else None
