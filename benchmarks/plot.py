"""The picture: bandwidth and latency, one colour and marker per peer throughout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks import machine
from benchmarks.peers import NAMES
from benchmarks.results import Results
from benchmarks.units import duration, length

LOOKS: dict[str, tuple[str, str, str]] = {
    "hvd": ("#d62728", "o", "Khorovod (hvd)"),
    "gloo": ("#1f77b4", "s", "Gloo (torch.distributed)"),
    "openmpi": ("#2ca02c", "^", "Open MPI (raw, spinning)"),
    "mpich": ("#9467bd", "v", "MPICH (raw, spinning)"),
    "shm": ("#8c564b", "D", "shm prototype's scheme (numpy)"),
    "memcpy": ("#7f7f7f", "", "memcpy on every rank (limit)"),
}


def draw(results: Results, path: Path) -> bool:
    """Write the picture, if there is anything to show."""
    if not _any(results, "latency", "bandwidth"):
        return False
    panels: list[Callable[[Axes, Results], None]] = [
        partial(_bandwidth, ranks=ranks) for ranks in _ranks(results)
    ]
    panels += [_time] * _any(results, "latency", "bandwidth") + [_states] * _any(results, "latency")
    height = -(-len(panels) // 2)
    figure, grid = plt.subplots(height, 2, figsize=(13, 4.8 * height), layout="constrained", squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        panel(axes, results)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle("float32 allreduce on one machine", fontsize=15, fontweight="bold")
    figure.supxlabel(_wrapped(machine.sentence(results.machine)), fontsize=7, color="#555555")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _bandwidth(axes: Axes, results: Results, ranks: int) -> None:
    for peer in NAMES:
        for place, style in (("in", "-"), ("out", "--")):
            points = _points(results, "bandwidth", peer, "GB/s", place=place, ranks=ranks)
            _line(axes, peer, points, style, label=place == "in")
    _size_axis(axes)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("GB/s (bytes of the tensor / time)")
    axes.set_title(f"Bandwidth, {ranks} ranks (solid: in place, dashed: out of place)", fontsize=11)
    axes.legend(fontsize=8, framealpha=0.9)


def _time(axes: Axes, results: Results) -> None:
    for peer in NAMES:
        small = _points(results, "latency", peer, "us", state="hot")
        large = _points(results, "bandwidth", peer, "us", place="in", ranks=2)
        _line(axes, peer, small + large, "-")
    _size_axis(axes)
    _duration_axis(axes)
    axes.set_title("Time of one call, hot, 2 ranks, in place", fontsize=11)
    axes.legend(fontsize=8, framealpha=0.9)


def _states(axes: Axes, results: Results) -> None:
    """4 bytes in every state: a bar to the median, a whisker to the 99th percentile."""
    found = {key["state"]: None for key in results.keys("latency") if key["bytes"] == 4}
    states = list(found)
    peers = [peer for peer in NAMES if _points(results, "latency", peer, "us", bytes=4)]
    width = 0.8 / max(1, len(peers))
    for index, peer in enumerate(peers):
        colour, _, label = LOOKS[peer]
        for position, state in enumerate(states):
            row = results.find("latency", peer, state=state, bytes=4)
            if row is None or not row.median:
                continue
            x, height, high = (
                position + (index - (len(peers) - 1) / 2) * width,
                row.median["us"],
                row.median["p99_us"],
            )
            axes.bar(x, height, width * 0.92, color=colour, label=label if position == 0 else None)
            axes.plot([x, x], [height, max(height, high)], color="#333333", linewidth=1)
            text = axes.annotate(
                duration(height), (x, height), (0, 2), textcoords="offset points", ha="center", va="bottom"
            )
            text.set(fontsize=6.5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.9})
    _duration_axis(axes)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * (top / bottom) ** 0.3)  # room for the legend
    axes.set_xticks(range(len(states)), states)
    axes.set_title("4 bytes, 2 ranks: median (bar) and 99th percentile (whisker)", fontsize=11)
    axes.legend(fontsize=8, framealpha=0.9, loc="upper left", ncols=2)


def _any(results: Results, *scenarios: str) -> bool:
    return any(row.median for row in results.rows if row.scenario in scenarios)


def _ranks(results: Results) -> list[int]:
    """The smallest and the largest world whose bandwidth was measured."""
    found = sorted({row.key["ranks"] for row in results.rows if row.scenario == "bandwidth" and row.median})
    return found if len(found) < 2 else [found[0], found[-1]]


def _points(results: Results, scenario: str, peer: str, metric: str, **key: Any) -> list[tuple[int, float]]:
    rows = [row for row in results.rows if row.scenario == scenario and row.peer == peer and row.median]
    chosen = [row for row in rows if all(row.key.get(name) == value for name, value in key.items())]
    return sorted((row.key["bytes"], row.median[metric]) for row in chosen)


def _line(axes: Axes, peer: str, points: list[tuple[int, float]], style: str, label: bool = True) -> None:
    if not points:
        return
    colour, marker, name = LOOKS[peer]
    bold = 2.4 if peer == "hvd" else 1.4
    pattern = ":" if peer == "memcpy" else style
    axes.plot(
        *zip(*points, strict=True),
        pattern,
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=bold,
        label=name if label else None,
    )


def _size_axis(axes: Axes) -> None:
    sizes = sorted({float(x) for line in axes.get_lines() for x in np.asarray(line.get_xdata())})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: length(int(value))))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("size of the tensor")
    axes.grid(True, which="major", alpha=0.3)


def _duration_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.set_ylabel("time of one call")
    axes.grid(True, axis="y", which="major", alpha=0.3)


def _tick(microseconds: float) -> str:
    for limit, scale, unit in ((1e3, 1, "us"), (1e6, 1e3, "ms")):
        if microseconds < limit:
            return f"{microseconds / scale:g} {unit}"
    return f"{microseconds / 1e6:g} s"


def _wrapped(text: str, width: int = 170) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > width:
            lines.append(line)
            line = ""
        line += f" {word}"
    return "\n".join([*lines, line])
