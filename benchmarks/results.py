"""The results: rows of measurements, and the questions that the goals, tables and plots ask of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import stats
from benchmarks.stats import Metrics


@dataclass
class Row:
    """One thing measured of one peer: a median over rounds, or the reason why there is none."""

    scenario: str
    peer: str
    key: dict[str, Any]
    status: str = "ok"
    error: str = ""
    rounds: list[Metrics] = field(default_factory=list)
    median: Metrics = field(default_factory=dict)

    def finish(self) -> Row:
        """Summarise the rounds."""
        self.median = stats.median_of(self.rounds)
        return self

    def series(self, metric: str) -> list[float]:
        """The metric, round by round."""
        return [metrics[metric] for metrics in self.rounds if metric in metrics]


@dataclass
class Results:
    """Everything that one run found."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def find(self, scenario: str, peer: str, **key: Any) -> Row | None:
        """The row of that peer whose key has these values."""
        for row in self.rows:
            same = row.scenario == scenario and row.peer == peer
            if same and all(row.key.get(name) == value for name, value in key.items()):
                return row
        return None

    def value(self, scenario: str, peer: str, metric: str, **key: Any) -> float | None:
        """A median, or None if it was not measured."""
        row = self.find(scenario, peer, **key)
        return row.median.get(metric) if row and row.status == "ok" else None

    def speedup(self, scenario: str, peer: str, **key: Any) -> float | None:
        """How many times faster than that peer ours was, in the same rounds."""
        ours, theirs = self.find(scenario, "hvd", **key), self.find(scenario, peer, **key)
        if not ours or not theirs or ours.status != "ok" or theirs.status != "ok":
            return None
        return stats.ratio(theirs.series("us"), ours.series("us"))

    def over_float32(self, peer: str, **key: Any) -> float | None:
        """The time of a format over that of float32 of as many bytes, in the same rounds."""
        row, plain = (self.find("halves", peer, **key | change) for change in ({}, {"format": "float32"}))
        return stats.ratio(row.series("us"), plain.series("us")) if row and plain else None

    def keys(self, scenario: str) -> list[dict[str, Any]]:
        """The distinct keys of a scenario's rows, in the order of measuring."""
        found: list[dict[str, Any]] = []
        for row in self.rows:
            if row.scenario == scenario and row.key not in found:
                found.append(row.key)
        return found

    def save(self, path: Path, goals: list[dict[str, Any]]) -> None:
        """Write everything as JSON."""
        document = {"machine": self.machine, "goals": goals, "rows": [asdict(row) for row in self.rows]}
        path.write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` wrote."""
        document = json.loads(path.read_text())
        return cls(document["machine"], [Row(**row) for row in document["rows"]])
