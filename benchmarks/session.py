"""A run: which peers, how many rounds, and how a case is measured on all of them in turn.

Every round asks each peer once (ours, gloo, openmpi, mpich, ..., ours, ...), so that a noisy minute falls on
all of them. The ranks of all peers stay up meanwhile, asleep on their control sockets; a world is replaced
when one of its ranks crashes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks import stats
from benchmarks.cases import Calls, Case, Idle, Memory, Result
from benchmarks.peers import Kind, Peer, by_name
from benchmarks.results import Row
from benchmarks.stats import Metrics
from benchmarks.world import World, WorldFailed

CASE_SECONDS = 90.0
MAX_CALLS = 100_000  # on a busy machine, a few thousand calls would fit into one time slice
MAX_START_FAILURES = 2


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    peers: tuple[str, ...]
    rounds: int
    quick: bool

    @property
    def budget(self) -> float:
        """Seconds that one peer may measure one case in one round."""
        return 0.15 if self.quick else 0.5

    @property
    def min_calls(self) -> int:
        """Fewest calls in a round, however long they take."""
        return 2 if self.quick else 3

    @property
    def patience(self) -> float:
        """Seconds after which a peer takes no part in the remaining rounds of a case: it is too slow."""
        return 10.0 if self.quick else 40.0


@dataclass
class _Turn:
    """What one peer does in every round of a case, and the seconds that it has taken for it."""

    row: Row
    case: Calls
    spent: float = 0.0


class Session:
    """Owns the worlds; scenarios describe cases and get rows."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.peers: dict[str, Peer] = {name: by_name(name) for name in options.peers}
        self._missing = {name: peer.missing() for name, peer in self.peers.items()}
        self._worlds: dict[tuple[str, int], World] = {}
        self._start_failures: dict[tuple[str, int], list[str]] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_worlds()

    def missing(self, name: str) -> str | None:
        """Why a peer takes no part: not asked for, not installed, or None."""
        return self._missing.get(name, "not asked for")

    def measure_calls(self, scenario: str, kind: Kind, case: Calls, size: int, **key: Any) -> list[Row]:
        """Measure synchronous calls or batches on every peer that can do them, interleaved in rounds."""
        return self.measure_together(scenario, kind, [(case, key)], size)

    def measure_together(
        self, scenario: str, kind: Kind, cases: Sequence[tuple[Calls, dict[str, Any]]], size: int
    ) -> list[Row]:
        """The same for several cases and their keys: a round has every case on every peer."""
        rows = [self.rows(scenario, kind, size, place=case.place, **key) for case, key in cases]
        turns = [_Turn(row, case) for (case, _), found in zip(cases, rows, strict=True) for row in found]

        def calibrate(turn: _Turn) -> None:
            turn.case = self._calibrated(turn.row.peer, size, turn.case)

        def measure(turn: _Turn) -> None:
            turn.row.rounds.append(self._one(turn.row.peer, size, turn.case))

        for action in (calibrate, *[measure] * self.options.rounds):
            for turn in turns:
                # Once at least: a world that was slow to start, or a loaded machine, is no result.
                if turn.row.status == "ok" and (not turn.row.rounds or turn.spent < self.options.patience):
                    began = time.monotonic()
                    self._attempt(turn.row, partial(action, turn))
                    turn.spent += time.monotonic() - began
        return [row for found in rows for row in self.finish(found)]

    def measure_fresh(
        self,
        scenario: str,
        case: Idle | Memory,
        size: int,
        metrics: Callable[[list[Result]], Metrics],
        **key: Any,
    ) -> list[Row]:
        """Measure something that needs a world nobody has used: one world per peer, one after another."""
        self.end_worlds()
        rows = self.rows(scenario, case.kind, size, **key)

        def measure(row: Row) -> None:
            row.rounds.append(metrics(self._run(row.peer, size, case)))

        for row in _alive(rows):
            self._attempt(row, partial(measure, row))
            self.end_worlds()
        return self.finish(rows)

    def rows(self, scenario: str, kind: Kind, size: int, **key: Any) -> list[Row]:
        """Empty rows for the peers that have something to say, those not installed marked so."""
        place, format = key.get("place", "in"), key.get("format", "float32")
        able = [name for name, peer in self.peers.items() if peer.supports(kind, size, place, format)]
        key |= {"ranks": size}
        return [Row(scenario, name, key, status=self._missing[name] or "ok") for name in able]

    def finish(self, rows: list[Row]) -> list[Row]:
        """Summarise and show them."""
        for row in rows:
            row.finish()
        say(_progress(rows))
        return rows

    def end_worlds(self) -> None:
        """Let all ranks go."""
        for world in self._worlds.values():
            world.close()
        self._worlds.clear()

    def _attempt(self, row: Row, action: Callable[[], None]) -> None:
        """Do it; a world that fails fails its row, and the rest goes on."""
        try:
            action()
        except WorldFailed as failure:
            row.status, row.error = "failed", str(failure)
            say(f"  {row.scenario} {row.key} failed: {failure}")

    def _calibrated(self, name: str, size: int, case: Calls) -> Calls:
        """The case with as many calls as fit into the budget, judged by a first try that also warms up."""
        trial = replace(case, calls=3, warmup=1)
        metrics = self._one(name, size, trial)
        per_call = metrics["mean_us"] / 1e6 + case.gap_ms / 1e3
        calls = int(self.options.budget / max(per_call, 1e-7))
        calls = max(self.options.min_calls, min(calls, MAX_CALLS))
        return replace(case, calls=calls, warmup=min(10, max(1, calls // 5)))

    def _one(self, name: str, size: int, case: Calls) -> Metrics:
        return stats.calls_metrics(case, self._run(name, size, case), self.peers[name].communicates)

    def _run(self, name: str, size: int, case: Case) -> list[Result]:
        world = self._world(name, size)
        try:
            return world.run(case, CASE_SECONDS)
        except BaseException:
            del self._worlds[name, size]
            world.kill()
            raise

    def _world(self, name: str, size: int) -> World:
        place = (name, size)
        failures = self._start_failures.setdefault(place, [])
        if len(failures) >= MAX_START_FAILURES:
            raise WorldFailed(failures[-1])
        if place not in self._worlds:
            try:
                self._worlds[place] = World(self.peers[name], size)
            except WorldFailed as failure:
                failures.append(str(failure))
                raise
            failures.clear()
        return self._worlds[place]


def say(text: str) -> None:
    """Progress goes to stderr; stdout has the tables."""
    print(text, file=sys.stderr, flush=True)


def _alive(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.status == "ok"]


def _progress(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    key = ", ".join(f"{name}={value}" for name, value in rows[0].key.items())
    shown = [f"{row.peer} {_short(row)}" for row in rows]
    return f"  {rows[0].scenario}({key}): " + "; ".join(shown)


def _short(row: Row) -> str:
    if row.status != "ok":
        return row.status
    metric, value = next(iter(row.median.items()))
    return f"{value:.4g} {metric}"
