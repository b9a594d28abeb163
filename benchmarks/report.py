"""The results as aligned Markdown tables, readable in a terminal too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import machine
from benchmarks.goals import Verdict
from benchmarks.peers import MPI_NAMES, NAMES
from benchmarks.results import Results, Row
from benchmarks.units import duration, length, number

NOTHING = ""


def document(results: Results, verdicts: Sequence[Verdict]) -> str:
    """All tables, the goals last."""
    sections = [
        ("Latency, 2 ranks (median / 99th percentile / whole loop per call)", _latency(results)),
        ("Batches of 1 KiB tensors, 2 ranks (whole batch; submission per tensor)", _batches(results)),
        ("Engine counters, per batch, the rank where they are highest", _counters(results)),
        ("Bandwidth, float32 sum (GB/s = bytes of the tensor / time)", _bandwidth(results)),
        ("Other operations, float32 (time of a call; bytes that each rank puts in)", _operations(results)),
        ("Half precision, sum in place (GB/s = bytes of the tensor / time)", _halves(results)),
        ("Recording a timeline, 2 ranks (time of a step)", _timeline(results)),
        ("Start-up", _startup(results)),
        ("Idle, after one allreduce", _idle(results)),
        ("Memory per rank beyond the tensors (MB)", _memory(results)),
        (
            "Faults, 3 ranks that reduce (from the fault to the last survivor's error, or end)",
            _faults(results),
        ),
        ("Goals", goals_table(verdicts)),
    ]
    parts = [machine.sentence(results.machine)]
    parts += [f"### {title}\n\n{body}" for title, body in sections if body]
    failures = _failures(results)
    return "\n\n".join([*parts, failures] if failures else parts) + "\n"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table, numbers to the right of the first column."""
    if not lines:
        return NOTHING
    widths = [max(3, *(len(line[i]) for line in [header, *lines])) for i in range(len(header))]

    def row(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        shown = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        return "| " + " | ".join(shown) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([row(header), row(rule), *(row(line) for line in lines)])


def goals_table(verdicts: Sequence[Verdict]) -> str:
    """One line per goal."""
    words = {True: "yes", False: "NO", None: "not measured"}
    lines = []
    for verdict in verdicts:
        measured = NOTHING if verdict.value is None else f"{number(verdict.value)} {verdict.unit}"
        goal = f"{verdict.bound} {verdict.limit:g} {verdict.unit}"
        lines.append((verdict.what, measured, goal, words[verdict.met], verdict.margin, verdict.where))
    return table(("goal", "measured", "asked", "met", "by how much", "worst case, remarks"), lines)


def _latency(results: Results) -> str:
    def cell(row: Row) -> str:
        return " / ".join(duration(row.median[metric]) for metric in ("us", "p99_us", "loop_us"))

    def start(key: dict[str, Any]) -> list[str]:
        return [key["state"], length(key["bytes"])]

    return _by_peer(results, "latency", ("state", "bytes"), start, cell)


def _batches(results: Results) -> str:
    def cell(row: Row) -> str:
        return f"{duration(row.median['us'])}; {row.median['submit_us']:.2f} us"

    def start(key: dict[str, Any]) -> list[str]:
        return [str(key["tensors"]), key["place"]]

    return _by_peer(results, "batches", ("tensors", "place"), start, cell)


def _counters(results: Results) -> str:
    """What our engine says of itself: times in us, everything else as counted."""
    keys = results.keys("batches")
    rows = [row for key in keys if (row := results.find("batches", "hvd", **key)) and row.median]
    names = [name for name in (rows[0].median if rows else ()) if name.startswith("counter.")]
    lines = [[name.removeprefix("counter."), *(_counter(row, name) for row in rows)] for name in names]
    return table(("counter", *(f"{row.key['tensors']} {row.key['place']}" for row in rows)), lines)


def _counter(row: Row, name: str) -> str:
    value = row.median.get(name, 0.0)
    return duration(value / 1e3) if name.endswith("_ns") else number(value)


def _bandwidth(results: Results) -> str:
    def start(key: dict[str, Any]) -> list[str]:
        return [str(key["ranks"]), key["place"], length(key["bytes"])]

    def ratios(key: dict[str, Any]) -> list[str]:
        gloo = _times(results.speedup("bandwidth", "gloo", **key))
        limit = _times(results.speedup("bandwidth", "memcpy", **key | {"place": "in"}))
        return [gloo, _over_mpi(results, "bandwidth", key), limit]

    head = ("ranks", "place", "bytes")
    more = ("hvd / gloo", "hvd / best MPI", "hvd / memcpy")
    return _by_peer(results, "bandwidth", head, start, lambda row: f"{row.median['GB/s']:.2f}", more, ratios)


def _operations(results: Results) -> str:
    def start(key: dict[str, Any]) -> list[str]:
        return [key["operation"], str(key["ranks"]), length(key["bytes"])]

    def ratios(key: dict[str, Any]) -> list[str]:
        return [_times(results.speedup("operations", "gloo", **key)), _over_mpi(results, "operations", key)]

    head, more = ("operation", "ranks", "bytes"), ("hvd / gloo", "hvd / best MPI")
    return _by_peer(results, "operations", head, start, lambda row: duration(row.median["us"]), more, ratios)


def _halves(results: Results) -> str:
    def start(key: dict[str, Any]) -> list[str]:
        return [key["format"], str(key["ranks"]), length(key["bytes"])]

    def ratios(key: dict[str, Any]) -> list[str]:
        over = [_times(results.over_float32(peer, **key)) for peer in ("hvd", "gloo")]
        return [_times(results.speedup("halves", "gloo", **key)), *over]

    head = ("format", "ranks", "bytes")
    more = ("hvd / gloo", "hvd: time / float32", "gloo: time / float32")
    return _by_peer(results, "halves", head, start, lambda row: f"{row.median['GB/s']:.2f}", more, ratios)


def _timeline(results: Results) -> str:
    def start(key: dict[str, Any]) -> list[str]:
        return [str(key["tensors"]), length(key["bytes"])]

    def ratio(key: dict[str, Any]) -> list[str]:
        over = results.speedup("timeline", "hvd-timeline", **key)
        return [NOTHING if over is None else f"{over:.3f}x"]

    head = ("tensors", "bytes")
    return _by_peer(
        results, "timeline", head, start, lambda row: duration(row.median["us"]), ("on / off",), ratio
    )


def _over_mpi(results: Results, scenario: str, key: dict[str, Any]) -> str:
    """The speed-up over the fastest MPI."""
    ratios = [results.speedup(scenario, peer, **key) for peer in MPI_NAMES]
    return _times(min((ratio for ratio in ratios if ratio is not None), default=None))


def _by_peer(
    results: Results,
    scenario: str,
    head: tuple[str, ...],
    start: Callable[[dict[str, Any]], list[str]],
    cell: Callable[[Row], str],
    more: tuple[str, ...] = (),
    end: Callable[[dict[str, Any]], list[str]] = lambda _: [],
) -> str:
    """A line per key, a column per peer that took part."""
    peers = _present(results, scenario)
    lines = []
    for key in results.keys(scenario):
        found = [results.find(scenario, peer, **key) for peer in peers]
        lines.append([*start(key), *(_cell(row, cell) for row in found), *end(key)])
    return table((*head, *peers, *more), lines)


def _startup(results: Results) -> str:
    lines = []
    for row in (row for row in results.rows if row.scenario == "startup"):
        over = row.median.get("over_python")
        seconds = _cell(row, lambda row: f"{row.median['seconds']:.3f} s")
        lines.append((row.key["what"], seconds, f"{over:.3f} s" if over else NOTHING))
    return table(("command", "time", "over plain python"), lines)


def _idle(results: Results) -> str:
    return _metrics(
        results,
        "idle",
        {
            "% of a core": "cpu_percent",
            "wake-ups per s": "wakeups_per_second",
            "preempted per s": "involuntary_per_second",
            "threads": "threads",
        },
    )


def _memory(results: Results) -> str:
    columns = {"engine": "engine_mb", "by init": "init_mb", "peak": "peak_mb", "of it shared": "shared_mb"}
    return _metrics(results, "memory", columns | {"proportional": "pss_mb"})


def _faults(results: Results) -> str:
    lines = []
    for row in (row for row in results.rows if row.scenario == "faults"):
        median = _cell(row, lambda row: duration(row.median["seconds"] * 1e6))
        worst = _cell(row, lambda row: duration(max(row.series("seconds")) * 1e6))
        lines.append((row.key["what"], median, worst, str(len(row.rounds))))
    return table(("fault", "median", "worst", "repetitions"), lines)


def _metrics(results: Results, scenario: str, columns: dict[str, str]) -> str:
    """A line per row, a column per metric."""
    lines = []
    for row in (row for row in results.rows if row.scenario == scenario):
        where = f", {length(row.key['bytes'])} {row.key['place']}" if "bytes" in row.key else ""
        values = [number(row.median[metric]) if row.median else row.status for metric in columns.values()]
        lines.append([f"{row.peer}{where}", *values])
    return table(("peer", *columns), lines)


def _present(results: Results, scenario: str) -> list[str]:
    return [name for name in NAMES if any(r.peer == name and r.scenario == scenario for r in results.rows)]


def _cell(row: Row | None, show: Callable[[Row], str]) -> str:
    if row is None:
        return NOTHING
    return show(row) if row.status == "ok" and row.median else row.status


def _failures(results: Results) -> str:
    failed = [row for row in results.rows if row.status == "failed"]
    if not failed:
        return NOTHING
    lines = [f"- {row.scenario} {row.key}, {row.peer}:\n\n```\n{row.error}\n```" for row in failed]
    return "### Failures\n\n" + "\n".join(lines)


def _times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"
