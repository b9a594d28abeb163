"""The rules of start_timeline() and stop_timeline(), with an engine that only writes down what it is told."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from horovod._config import Settings
from horovod._core import runtime, timeline
from horovod._identity import discover


class FakeEngine:
    """An engine as far as timelines are concerned."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.active = False

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        assert isinstance(path, str)
        assert isinstance(mark_cycles, bool)
        if "nowhere" in path:
            raise ValueError(f"Cannot write a timeline to '{path}': No such file or directory.")
        self.calls.append(("start", path, mark_cycles))
        self.active = True

    def stop_timeline(self) -> bool:
        was_active, self.active = self.active, False
        if was_active:
            self.calls.append(("stop",))
        return was_active


@pytest.fixture
def engine() -> FakeEngine:
    """The engine that :func:`enter` puts in place."""
    return FakeEngine()


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> Any:
    """Makes this process a rank, as far as the runtime knows: ``enter(rank, HOROVOD_TIMELINE)``."""

    def enter(rank: int, variable: str) -> None:
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "SIZE": "2", "LOCAL_SIZE": "2"}
        cross = {"CROSS_RANK": "0", "CROSS_SIZE": "1", "JOB_ID": "x"}
        who = discover({f"HOROVOD_{name}": value for name, value in {**place, **cross}.items()})
        settings = Settings.from_env({"HOROVOD_TIMELINE": variable})
        # Only what the module uses, so that further fields of the runtime do not concern this test.
        fake = type("Fake", (), {"identity": who, "settings": settings, "engine": engine})()
        monkeypatch.setattr(runtime, "_current", fake)

    return enter


def test_before_init():
    with pytest.raises(ValueError, match="init"):
        timeline.start_timeline("x.json")
    with pytest.raises(ValueError, match="init"):
        timeline.stop_timeline()


@pytest.mark.parametrize("rank", [0, 1])
def test_variable_must_be_set(enter, engine, rank):
    enter(rank, "")
    with pytest.raises(ValueError, match="HOROVOD_TIMELINE"):
        timeline.start_timeline("x.json")
    assert engine.calls == []


@pytest.mark.parametrize("variable", ["DYNAMIC", "dynamic", "other.json"])
def test_start_and_stop(enter, engine, variable):
    enter(0, variable)
    timeline.start_timeline("a.json")
    timeline.stop_timeline()
    timeline.start_timeline(Path("b.json"), mark_cycles=True)
    timeline.stop_timeline()
    assert engine.calls == [("start", "a.json", False), ("stop",), ("start", "b.json", True), ("stop",)]


def test_new_file_ends_the_old_one(enter, engine):
    enter(0, "DYNAMIC")
    timeline.start_timeline("a.json")
    timeline.start_timeline("b.json")
    assert engine.calls == [("start", "a.json", False), ("stop",), ("start", "b.json", False)]


def test_other_ranks_write_nothing(enter, engine, caplog):
    enter(1, "DYNAMIC")
    timeline.start_timeline("a.json")
    timeline.stop_timeline()
    assert (engine.calls, caplog.records) == ([], [])


@pytest.mark.parametrize("path", ["", "nowhere/a.json"])
def test_paths_that_are_none(enter, engine, path):
    enter(0, "DYNAMIC")
    with pytest.raises(ValueError, match="nowhere" if path else "empty"):
        timeline.start_timeline(path)
    assert engine.calls == []


def test_stopping_none_is_logged(enter, engine, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("horovod"), "propagate", True)
    enter(0, "DYNAMIC")
    timeline.stop_timeline()
    assert [record.getMessage() for record in caplog.records] == [
        "stop_timeline(): no timeline is being recorded"
    ]
    assert engine.calls == []


@pytest.mark.parametrize(
    ("rank", "variable", "calls"),
    [
        (0, "", []),
        (0, "DYNAMIC", []),
        (0, "Dynamic", []),
        (0, "t.json", [("start", "t.json", True)]),
        (1, "t.json", []),
    ],
)
def test_start_from_settings(engine, rank, variable, calls):
    settings = Settings.from_env({"HOROVOD_TIMELINE": variable, "HOROVOD_TIMELINE_MARK_CYCLES": "1"})
    timeline.start_from_settings(settings, rank, engine)
    assert engine.calls == calls


def test_settings_with_an_unwritable_file_stop_no_job(engine, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("horovod"), "propagate", True)
    timeline.start_from_settings(Settings(timeline="nowhere/t.json"), 0, engine)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "'nowhere/t.json': No such file" in record.getMessage()
