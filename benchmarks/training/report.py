"""What a run of the training benchmark found: tables, goals, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks import machine
from benchmarks.report import table
from benchmarks.training.models import TASKS

Round = dict[str, dict[str, float]]

COLOURS = {"silent": "#7f7f7f", "hvd": "#d62728", "ddp": "#1f77b4"}
LABELS = {"silent": "two silent copies", "hvd": "Khorovod", "ddp": "DDP on Gloo"}


@dataclass(frozen=True)
class Goal:
    """At most so many times the silent copies' time; at least so many times DDP's throughput."""

    over_silent: float
    over_ddp: float


GOALS = {"mlp": Goal(1.2, 1.6), "cnn": Goal(1.05, 1.0), "pieces": Goal(1.25, 1.0)}
TIMELINE = 1.02  # at most so many times the time without one


def ratios(rounds: Sequence[Round], one: str, other: str, what: str = "step_ms") -> list[float]:
    """One trainer's times over the other's, round by round."""
    return [found[one][what] / found[other][what] for found in rounds if one in found and other in found]


def document(results: dict[str, Any]) -> str:
    """All tables, as markdown."""
    rounds: dict[str, list[Round]] = results["rounds"]
    count = max(len(found) for found in rounds.values())
    lines = [
        f"{machine.sentence(results['machine'])}; {results['ranks']} ranks, {count} rounds",
        "",
        "### Training steps (medians; ratios are medians of the ratios within a round)",
        "",
        table(_HEADER, [_row(model, found) for model, found in rounds.items()]),
        "",
        "### Where the time goes",
        "",
        table(_PARTS, [row for model, found in rounds.items() for row in _parts(model, found)]),
        "",
        "### Goals",
        "",
        table(_GOALS, [row for model, found in rounds.items() for row in _verdicts(model, found)]),
    ]
    return "\n".join(lines)


_HEADER = ["model", "silent", "hvd", "ddp", "hvd / silent", "ddp / silent", "throughput over ddp"]
_PARTS = [
    "model",
    "trainer",
    "step",
    "backward",
    "optimizer and waiting",
    "exposed",
    "per gradient in backward",
    "CPU",
]
_GOALS = ["goal", "measured", "asked", "met", "rounds between"]


def _row(model: str, rounds: Sequence[Round]) -> list[str]:
    times = [f"{_median(rounds, name, 'step_ms'):.1f} ms" for name in ("silent", "hvd", "ddp")]
    pairs = [("hvd", "silent"), ("ddp", "silent"), ("ddp", "hvd")]
    return [
        TASKS[model].about,
        *times,
        *[f"{statistics.median(ratios(rounds, *pair)):.2f}x" for pair in pairs],
    ]


def _parts(model: str, rounds: Sequence[Round]) -> list[list[str]]:
    rows = []
    for name in ("silent", "hvd", "ddp"):
        differences = [found[name]["step_ms"] - found["silent"]["step_ms"] for found in rounds]
        hooks = [
            (found[name]["backward_ms"] - found["silent"]["backward_ms"]) / found[name]["parameters"] * 1000
            for found in rounds
        ]
        shown = (
            ["", ""]
            if name == "silent"
            else [f"{statistics.median(differences):.1f} ms", f"{statistics.median(hooks):.1f} us"]
        )
        parts = [_median(rounds, name, part) for part in ("step_ms", "backward_ms", "optimizer_ms", "cpu_ms")]
        step, backward, optimizer, cpu = (f"{part:.1f} ms" for part in parts)
        rows.append([model, LABELS[name], step, backward, optimizer, *shown, cpu])
    return rows


def _verdicts(model: str, rounds: Sequence[Round]) -> list[list[str]]:
    goal = GOALS[model]
    over_silent, over_ddp = ratios(rounds, "hvd", "silent"), ratios(rounds, "ddp", "hvd")
    silent, ddp = statistics.median(over_silent), statistics.median(over_ddp)
    with_timeline = ratios(rounds, "timeline", "hvd")
    recording = statistics.median(with_timeline)
    return [
        [
            f"{model}: time over two silent copies",
            f"{silent:.2f}x",
            f"at most {goal.over_silent}x",
            _met(silent <= goal.over_silent),
            _spread(over_silent),
        ],
        [
            f"{model}: throughput over DDP",
            f"{ddp:.2f}x",
            f"at least {goal.over_ddp}x",
            _met(ddp >= goal.over_ddp),
            _spread(over_ddp),
        ],
        [
            f"{model}: time with a timeline over without",
            f"{recording:.3f}x",
            f"at most {TIMELINE}x",
            _met(recording <= TIMELINE),
            _spread(with_timeline),
        ],
    ]


def _met(yes: bool) -> str:
    return "yes" if yes else "NO"


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}x and {max(values):.2f}x"


def _median(rounds: Sequence[Round], name: str, what: str) -> float:
    return statistics.median(found[name][what] for found in rounds)


def draw(results: dict[str, Any], path: Path) -> None:
    """Step times of all rounds, a panel per model."""
    rounds: dict[str, list[Round]] = results["rounds"]
    figure, grid = plt.subplots(
        1, len(rounds), figsize=(4.6 * len(rounds), 4.2), layout="constrained", squeeze=False
    )
    for axes, (model, found) in zip(grid.flat, rounds.items(), strict=True):
        for place, name in enumerate(("silent", "hvd", "ddp")):
            times = [one[name]["step_ms"] for one in found]
            axes.bar(place, statistics.median(times), color=COLOURS[name], alpha=0.75)
            axes.plot([place] * len(times), times, "k.", markersize=4)
        axes.set_xticks(range(3), [LABELS[name] for name in ("silent", "hvd", "ddp")], fontsize=8)
        axes.set_title(TASKS[model].about.replace(", ", "\n", 1), fontsize=9)
        axes.set_ylabel("ms per step")
        axes.set_ylim(bottom=0)
    figure.suptitle(f"Training on {results['ranks']} workers of one machine", fontweight="bold")
    figure.savefig(path, dpi=130)
    plt.close(figure)
