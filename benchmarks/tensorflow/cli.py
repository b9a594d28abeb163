"""The driver: every round fits the model once with each trainer; ratios are taken within a round."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import ROOT, machine, readme
from benchmarks.session import say
from benchmarks.tensorflow.report import document, draw
from benchmarks.tensorflow.trainers import TRAINERS
from benchmarks.tensorflow.worker import Fit, Small
from benchmarks.world import World

SECONDS = 240.0
FULL_ROUNDS, QUICK_ROUNDS = 7, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    options = _parser().parse_args(arguments)
    saved = options.out / "tensorflow.json"
    if options.report_only:
        results = json.loads(saved.read_text())
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worlds are ended
        rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
        results = {"machine": machine.facts(), "ranks": options.ranks, **_measure(options, rounds)}
        options.out.mkdir(parents=True, exist_ok=True)
        saved.write_text(json.dumps(results, indent=1))
    text, picture = document(results), options.out / "tensorflow.png"
    print(text)
    draw(results, picture)
    if options.write_readme:
        readme.write(text, picture, "tensorflow", "step times of model.fit")
    return 0


def _measure(options: argparse.Namespace, rounds: int) -> dict[str, Any]:
    fits: list[dict[str, float]] = []
    small: list[dict[str, float]] = []
    worlds: dict[str, World] = {}
    try:
        for name in options.trainers:
            worlds[name] = World(
                TRAINERS[name](), options.ranks, "benchmarks.tensorflow.worker", start_seconds=SECONDS
            )
        for number in range(rounds):
            order = sorted(worlds)
            turn = number % len(order)  # who comes first changes
            case = Fit(2 if options.quick else 8)
            times = {
                name: max(float(one["step_ms"]) for one in worlds[name].run(case, SECONDS))
                for name in order[turn:] + order[:turn]
            }
            fits.append(times)
            say(f"  round {number + 1}: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in times.items()))
            if "hvd" in worlds:
                answers = worlds["hvd"].run(Small(100, 20 if options.quick else 300), SECONDS)
                small.append(max(answers, key=lambda one: float(one["single_us"])))
    finally:
        for world in worlds.values():
            world.close()
    return {"fits": fits, "small": small}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tensorflow", description=__doc__)
    add = parser.add_argument
    add("--trainers", type=lambda text: text.split(","), default=list(TRAINERS), metavar="NAME,...")
    add("--ranks", type=int, default=2)
    add("--quick", action="store_true", help="one round of two steps")
    add("--rounds", type=int, help=f"default {FULL_ROUNDS}, quick {QUICK_ROUNDS}")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR")
    add("--report-only", action="store_true", help="measure nothing; report DIR/tensorflow.json again")
    add("--write-readme", action="store_true", help="put the table into benchmarks/README.md")
    return parser
