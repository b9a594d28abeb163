"""The command line: what to run, where to write it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ROOT, goals, machine, readme, report, scenarios
from benchmarks.peers import NAMES
from benchmarks.results import Results
from benchmarks.session import Options, Session, say

FULL_ROUNDS = 5
QUICK_ROUNDS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write. A failed row does not change the exit code: it is a result."""
    options = _parser().parse_args(arguments)
    if options.list:
        for scenario in scenarios.ALL:
            print(f"{scenario.name:10} {scenario.about}")
        return 0
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job; what is started here will be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    saved = options.out / "results.json"
    results = Results.load(saved) if options.report_only else _measure(options)
    verdicts = goals.judge_all(results)
    results.save(saved, [verdict.as_dict() for verdict in verdicts])
    text = report.document(results, verdicts)
    (options.out / "results.md").write_text(text)
    print(text)
    picture = options.out / "plot.png"
    _plot(results, picture)
    if options.write_readme:
        readme.write(text, picture)
    return 0


def _measure(options: argparse.Namespace) -> Results:
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    results = Results(machine.facts())
    results.machine |= {"rounds": rounds, "quick": options.quick}
    if results.machine["load_before"] > 0.3 * results.machine["cores"]:
        say(f"The machine is busy already (load {results.machine['load_before']:.1f}): expect noise.")
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worlds are ended
    with Session(Options(options.peers, rounds, options.quick)) as session:
        for scenario in scenarios.ALL:
            if scenario.name in options.only:
                say(f"{scenario.name}: {scenario.about}")
                results.rows += scenario.run(session)
                results.machine["seconds"] = round(time.monotonic() - began)
                results.save(options.out / "results.json", [])  # what there is, should a later one be stopped
    return results


def _plot(results: Results, path: Path) -> None:
    try:
        from benchmarks import plot  # matplotlib is optional, and slow to import
    except ImportError as error:
        say(f"no plot: {error}")
        return
    if plot.draw(results, path):
        say(f"wrote {path}")


def _names(known: Sequence[str]) -> type[tuple[str, ...]]:
    """A parser of comma-separated names that keeps our order."""

    def parse(text: str) -> tuple[str, ...]:
        asked = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in asked if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
        return tuple(name for name in known if name in asked)

    return parse  # type: ignore[return-value]


def _parser() -> argparse.ArgumentParser:
    every = tuple(scenario.name for scenario in scenarios.ALL)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=sys.modules["benchmarks"].__doc__
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a smoke run of a minute or two")
    add("--only", type=_names(every), default=every, metavar="NAME,...", help="these scenarios")
    add("--peers", type=_names(NAMES), default=NAMES, metavar="NAME,...", help=f"of {', '.join(NAMES)}")
    add("--rounds", type=int, help=f"default {FULL_ROUNDS}, quick {QUICK_ROUNDS}")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR", help="where results go")
    add("--list", action="store_true", help="name the scenarios and stop")
    add("--report-only", action="store_true", help="measure nothing; report DIR/results.json again")
    add("--write-readme", action="store_true", help="put the tables into benchmarks/README.md")
    return parser
