"""Worlds start, answer, fail and end as they should; and a quick run goes from end to end."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from benchmarks.cases import Calls, Idle
from benchmarks.cli import main
from benchmarks.peers import ALL, NAMES, Kind, Library, by_name, hvd_timeline
from benchmarks.scenarios import halves, operations, timeline
from benchmarks.session import Options, Session
from benchmarks.world import World, WorldFailed

LIBRARIES = [peer.name for peer in ALL if issubclass(peer, Library) and "operations" in peer.kinds]


@pytest.mark.parametrize("name", NAMES)
def test_every_installed_peer_sums(name: str) -> None:
    peer = by_name(name)
    if reason := peer.missing():
        pytest.skip(reason)
    kind: Kind = "bandwidth" if "bandwidth" in peer.kinds else "timeline"
    with Session(Options((name,), rounds=1, quick=True)) as session:
        (row,) = session.measure_calls(kind, kind, Calls(4096), 2, bytes=4096)
    assert row.status == "ok", row.error


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("size", [2, 3])
def test_every_installed_library_has_every_operation(name: str, size: int) -> None:
    if reason := by_name(name).missing():
        pytest.skip(reason)
    with Session(Options((name,), rounds=1, quick=True)) as session:
        cases = [
            (Calls(1200, place=place, operation=operation), {"operation": operation})
            for operation, place in operations.OPERATIONS.items()
        ]
        rows = session.measure_together("operations", "operations", cases, size)
    assert len(rows) == len(operations.OPERATIONS)
    assert [row.error for row in rows if row.status != "ok"] == []


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_installed_library_sums_the_formats_that_it_names(name: str) -> None:
    pytest.importorskip("ml_dtypes")
    peer = by_name(name)
    if reason := peer.missing():
        pytest.skip(reason)
    with Session(Options((name,), rounds=1, quick=True)) as session:
        cases = [(Calls(4096, format=format), {"format": format}) for format in halves.FORMATS]
        rows = session.measure_together("halves", "halves", cases, 2)
    assert tuple(row.key["format"] for row in rows) == peer.formats
    assert [row.error for row in rows if row.status != "ok"] == []


def test_the_timeline_peer_says_if_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := by_name("hvd-timeline").missing():
        pytest.skip(reason)
    monkeypatch.setattr(hvd_timeline, "SETTING", "")  # start_timeline() refuses then
    with Session(Options(("hvd-timeline",), rounds=1, quick=True)) as session:
        case = Calls(4096, recording=True)
        (row,) = session.measure_calls("timeline", "timeline", case, 2, bytes=4096)
    assert row.status == "failed"
    assert "start_timeline() needs HOROVOD_TIMELINE" in row.error


def test_the_timeline_peer_records_in_the_world_that_it_also_measures_without() -> None:
    if reason := by_name("hvd-timeline").missing():
        pytest.skip(reason)
    with Session(Options(("hvd-timeline",), rounds=1, quick=True)) as session:
        rows = timeline.run(session)
    assert [(row.peer, row.key["tensors"]) for row in rows] == [
        ("hvd", 100),
        ("hvd-timeline", 100),
        ("hvd", 1),
        ("hvd-timeline", 1),
    ]
    assert [row.error for row in rows if row.status != "ok"] == []
    assert all(row.rounds for row in rows)  # one at least, however busy the machine is


def test_a_killed_rank_is_an_error_that_says_so() -> None:
    world = World(by_name("memcpy"), 2)
    victim = world.pids[1]
    timer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
    timer.start()
    try:
        with pytest.raises(WorldFailed, match=r"memcpy: (rank 1 has gone|a process ended with code -9)"):
            world.run(Idle(30), seconds=60)
    finally:
        timer.join()
        world.kill()


def test_a_deadline_is_kept() -> None:
    world = World(by_name("memcpy"), 2)
    try:
        with pytest.raises(WorldFailed, match="no answer in time"):
            world.run(Idle(30), seconds=1)
    finally:
        world.kill()


def test_a_failed_case_fails_its_row_only() -> None:
    with Session(Options(("memcpy",), rounds=1, quick=True)) as session:
        (bad,) = session.measure_calls("bandwidth", "bandwidth", Calls(1 << 60), 2, bytes=0)
        (good,) = session.measure_calls("bandwidth", "bandwidth", Calls(4096), 2, bytes=4096)
    assert (bad.status, good.status) == ("failed", "ok")
    assert "MemoryError" in bad.error


@pytest.mark.slow
def test_a_quick_run_writes_everything(tmp_path: Path) -> None:
    arguments = ["--quick", "--rounds", "1", "--peers", "gloo,openmpi", "--only", "latency,startup"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "results.json").read_text())
    assert {row["status"] for row in document["rows"]} <= {"ok", "not installed"}
    assert document["machine"]["commit"]
    assert len(document["goals"]) > 10
    assert (tmp_path / "results.md").is_file()
