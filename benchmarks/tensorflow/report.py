"""What a run of the TensorFlow benchmark found: tables, goals, a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks import machine
from benchmarks.report import table

LABELS = {"silent": "two silent copies", "hvd": "Khorovod", "mirrored": "MultiWorkerMirrored (ring)"}
COLOURS = {"silent": "#7f7f7f", "hvd": "#d62728", "mirrored": "#1f77b4"}
MIRRORED_GOAL, SMALL_GOAL = 1.3, 10.0


def document(results: dict[str, Any]) -> str:
    """All tables, as markdown."""
    fits, small = results["fits"], results["small"]
    names = [name for name in LABELS if name in fits[0]]
    lines = [
        f"{machine.sentence(results['machine'])}; {results['ranks']} ranks, {len(fits)} rounds",
        "",
        "### model.fit, 100 MB of gradients (medians)",
        "",
        table(["", *[LABELS[name] for name in names]], [["ms per step", *_medians(fits, names)]]),
        "",
        "### Goals",
        "",
        table(["goal", "measured", "asked", "met"], [*_fit_goals(fits), *_small_goals(small)]),
    ]
    return "\n".join(lines)


def _medians(fits: list[dict[str, float]], names: list[str]) -> list[str]:
    return [f"{statistics.median(one[name] for one in fits):.1f}" for name in names]


def _fit_goals(fits: list[dict[str, float]]) -> list[list[str]]:
    rows = []
    if all("silent" in one and "hvd" in one for one in fits):
        ratio = statistics.median(one["hvd"] / one["silent"] for one in fits)
        rows.append(["fit: time over two silent copies", f"{ratio:.2f}x", "(no goal)", ""])
    if all("mirrored" in one and "hvd" in one for one in fits):
        ratio = statistics.median(one["mirrored"] / one["hvd"] for one in fits)
        met = "yes" if ratio >= MIRRORED_GOAL else "NO"
        rows.append(
            ["fit: throughput over MultiWorkerMirrored", f"{ratio:.2f}x", f"at least {MIRRORED_GOAL}x", met]
        )
    return rows


def _small_goals(small: list[dict[str, float]]) -> list[list[str]]:
    if not small:
        return []
    rows = []
    for key, what in (("single_us", "one operation each"), ("group_us", "as one group")):
        value = statistics.median(one[key] for one in small)
        met = "yes" if value < SMALL_GOAL else "NO"
        rows.append([f"100 x 1 KiB, {what}", f"{value:.1f} us per tensor", f"under {SMALL_GOAL:g} us", met])
    return rows


def draw(results: dict[str, Any], path: Path) -> None:
    """Step times of all rounds."""
    fits = results["fits"]
    figure, axes = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
    names = [name for name in LABELS if name in fits[0]]
    for place, name in enumerate(names):
        times = [one[name] for one in fits]
        axes.bar(place, statistics.median(times), color=COLOURS[name], alpha=0.75)
        axes.plot([place] * len(times), times, "k.", markersize=4)
    axes.set_xticks(range(len(names)), [LABELS[name] for name in names], fontsize=8)
    axes.set_ylabel("ms per step")
    axes.set_title(f"model.fit, 100 MB of gradients, {results['ranks']} workers", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)
