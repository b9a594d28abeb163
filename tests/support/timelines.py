"""Reads timelines: the file as JSON, and its events as slices that nest. Needs neither pytest nor horovod."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]


class Slice(NamedTuple):
    """A begin and its end, on the row of a tensor and a rank."""

    tensor: str
    rank: int
    name: str
    begin: float
    end: float
    parent: str | None
    args: dict[str, Any]


class Mark(NamedTuple):
    """A moment within the slice ``parent``."""

    tensor: str
    rank: int
    name: str
    at: float
    parent: str | None


def read(path: Path | str) -> list[Event]:
    """The events of a file that must be JSON at this moment."""
    events = json.loads(Path(path).read_bytes())
    assert isinstance(events, list)
    return events


def wait_for(path: Path | str, seen: Callable[[list[Event]], bool], seconds: float = 20.0) -> list[Event]:
    """The events, as soon as they show what is ``seen``.

    A file that is read in the very moment of a write may be torn; it is read again.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            events = read(path)
            if seen(events):
                return events
        except (json.JSONDecodeError, UnicodeDecodeError, FileNotFoundError):
            if time.monotonic() > end:
                raise
        else:
            assert time.monotonic() < end, (
                f"waited in vain; the file has {len(events)} events: {events[-20:]}"
            )
        time.sleep(0.02)


def metadata(events: Sequence[Event], name: str) -> dict[tuple[int, int], dict[str, Any]]:
    """The arguments of all metadata events of a name, by process and thread id; each is given once."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == name:
            assert (event["pid"], event["tid"]) not in found, event
            found[event["pid"], event["tid"]] = event["args"]
    return found


def row_names(events: Sequence[Event]) -> dict[int, str]:
    """The tensors (or other things that have rows of their own), by process id."""
    return {pid: args["name"] for (pid, _), args in metadata(events, "process_name").items()}


def drawn(events: Sequence[Event]) -> tuple[list[Slice], list[Mark]]:
    """All slices, in the order of their ends, and all marks; fails unless begins and ends nest."""
    names = row_names(events)
    rows: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "BEX":
            rows[event["pid"], event["tid"]].append(event)
    slices: list[Slice] = []
    marks: list[Mark] = []
    for (pid, rank), row in rows.items():
        open_slices: list[Event] = []
        for event in sorted(row, key=lambda event: event["ts"]):  # stable, as the viewers do it
            parent = open_slices[-1]["name"] if open_slices else None
            if event["ph"] == "B":
                open_slices.append(event)
            elif event["ph"] == "X":
                assert event["dur"] == 0, event
                marks.append(Mark(names[pid], rank, event["name"], event["ts"], parent))
            else:
                assert open_slices, f"an end without a beginning: {event}"
                begin = open_slices.pop()
                parent = open_slices[-1]["name"] if open_slices else None
                args = event.get("args", {})
                slices.append(Slice(names[pid], rank, begin["name"], begin["ts"], event["ts"], parent, args))
        assert not open_slices, f"beginnings without an end: {open_slices}"
    return slices, marks


def count(events: Sequence[Event], tensor: str, rank: int, name: str) -> int:
    """How many slices of a name a row has."""
    return sum((one.tensor, one.rank, one.name) == (tensor, rank, name) for one in drawn(events)[0])


def cycles(events: Sequence[Event]) -> list[Event]:
    """The marks of the coordinator's cycles."""
    return [event for event in events if event.get("name") == "CYCLE_START"]
