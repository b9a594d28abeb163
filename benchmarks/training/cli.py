"""The driver: every round trains each model once with each trainer; ratios are taken within a round."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT, machine, readme
from benchmarks.session import say
from benchmarks.training.models import TASKS
from benchmarks.training.report import document, draw
from benchmarks.training.trainers import TRAINERS
from benchmarks.training.worker import Train
from benchmarks.world import World

SECONDS = 120.0
STEPS = {"mlp": 10, "cnn": 10, "pieces": 40}
FULL_ROUNDS, QUICK_ROUNDS = 9, 1

Round = dict[str, dict[str, float]]  # by trainer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    options = _parser().parse_args(arguments)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    saved = options.out / "training.json"
    if options.report_only:
        results = json.loads(saved.read_text())
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worlds are ended
        results = {"machine": machine.facts(), "ranks": options.ranks, "rounds": _measure(options)}
        options.out.mkdir(parents=True, exist_ok=True)
        saved.write_text(json.dumps(results, indent=1))
    text = document(results)
    print(text)
    picture = options.out / "training.png"
    draw(results, picture)
    if options.write_readme:
        readme.write(text, picture, "training", "step times")
    return 0


def _measure(options: argparse.Namespace) -> dict[str, list[Round]]:
    rounds: dict[str, list[Round]] = {name: [] for name in options.models}
    worlds: dict[str, World] = {}
    try:
        for name in options.trainers:
            worlds[name] = World(TRAINERS[name](), options.ranks, "benchmarks.training.worker")
        for number in range(options.rounds):
            for model in options.models:
                rounds[model].append(_round(worlds, model, options.quick, number))
                say(f"  round {number + 1}, {model}: " + _short(rounds[model][-1]))
    finally:
        for world in worlds.values():
            world.close()
    return rounds


def _round(worlds: dict[str, World], model: str, quick: bool, number: int) -> Round:
    case = Train(model, 2 if quick else STEPS[model], warmup=2)
    runs = {name: (world, case) for name, world in sorted(worlds.items())}
    if "hvd" in worlds:  # the same world, since two that do the same differ by more
        runs["timeline"] = worlds["hvd"], replace(case, recording=True)
    order = list(runs.items())
    turn = number % len(order)  # who comes first changes
    turns = order[turn:] + order[:turn]
    return {name: _slowest(world.run(asked, SECONDS)) for name, (world, asked) in turns}


def _slowest(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The parts of a step on the rank that was slowest."""
    return max(results, key=lambda result: float(result["step_ms"]))


def _short(times: Round) -> str:
    return ", ".join(f"{name} {values['step_ms']:.1f} ms" for name, values in sorted(times.items()))


def _names(known: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := sorted(set(names) - set(known)):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
        return names

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    add = parser.add_argument
    add("--models", type=_names(list(TASKS)), default=list(TASKS), metavar="NAME,...", help=", ".join(TASKS))
    add("--trainers", type=_names(list(TRAINERS)), default=list(TRAINERS), metavar="NAME,...")
    add("--ranks", type=int, default=2)
    add("--quick", action="store_true", help="one round of two steps")
    add("--rounds", type=int, help=f"default {FULL_ROUNDS}, quick {QUICK_ROUNDS}")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR")
    add("--report-only", action="store_true", help="measure nothing; report DIR/training.json again")
    add("--write-readme", action="store_true", help="put the table into benchmarks/README.md")
    return parser
