"""Timelines of running jobs: every tensor on every rank, in a file that is JSON at all times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support import timelines
from tests.support.outcomes import Raised, error_of
from tests.support.world import PLANES, RemoteError, Workers, clean_environment

StartWorkers = Callable[..., Workers]

HOROVODRUN = str(Path(sys.executable).parent / "horovodrun")

# What _work() does: operation, dtype and shape by tensor.
WORK = {
    "small": ("ALLREDUCE", "float32", "[2, 3]"),
    "start": ("BROADCAST", "int64", "[4]"),
    "large": ("ALLREDUCE", "float64", "[65536]"),
}

every_plane = pytest.mark.parametrize("plane", PLANES)


def _work() -> None:
    hvd.init()
    hvd.allreduce(np.ones((2, 3), np.float32), name="small")
    hvd.broadcast(np.arange(4), 0, name="start")
    hvd.allreduce(np.ones(1 << 16), name="large")
    hvd.barrier()


def _shows_work(size: int) -> Callable[[list[timelines.Event]], bool]:
    """Whether a file shows all of ``_work()`` on ``size`` ranks."""

    def seen(events: list[timelines.Event]) -> bool:
        slices, _ = timelines.drawn(events)
        rows = {(one.tensor, one.rank, one.name) for one in slices}
        return all((tensor, rank, WORK[tensor][0]) in rows for tensor in WORK for rank in range(size))

    return seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the timeline goes."""
    return tmp_path / "timeline.json"


@every_plane
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_tensor_on_every_rank(start_workers: StartWorkers, size: int, plane: str, path: Path) -> None:
    job = start_workers(size, plane, {"HOROVOD_TIMELINE": str(path)})
    job.run(_work)
    events = timelines.wait_for(path, _shows_work(size))
    slices, marks = timelines.drawn(events)
    for tensor, (operation, dtype, shape) in WORK.items():
        for rank in range(size):
            mine = [one for one in slices if (one.tensor, one.rank) == (tensor, rank)]
            [whole] = [one for one in mine if one.name == operation]
            [negotiation] = [one for one in mine if one.name == f"NEGOTIATE_{operation}"]
            assert whole.args == {"dtype": dtype, "shape": shape}
            assert (whole.parent, negotiation.parent) == (None, None)
            assert 0 <= negotiation.begin <= negotiation.end <= whole.begin <= whole.end
            inner = [one for one in mine if one not in (whole, negotiation)]
            assert {one.parent for one in inner} <= {operation}
        reports = [mark for mark in marks if mark.tensor == tensor]
        assert sorted(mark.name for mark in reports) == [str(rank) for rank in range(size)]
        assert {(mark.rank, mark.parent) for mark in reports} == {(0, f"NEGOTIATE_{operation}")}
    assert timelines.cycles(events) == []
    job.run(hvd.shutdown)
    assert _shows_work(size)(timelines.read(path))


@every_plane
def test_what_moves_the_data_has_a_name(start_workers: StartWorkers, plane: str, path: Path) -> None:
    start_workers(2, plane, {"HOROVOD_TIMELINE": str(path)}).run(_work)
    slices, _ = timelines.drawn(timelines.wait_for(path, _shows_work(2)))
    activities = {
        (one.rank, one.name)
        for one in slices
        if (one.tensor, one.parent) == ("large", "ALLREDUCE") and one.name != "QUEUE"
    }
    assert activities == {(rank, f"{plane.upper()}_ALLREDUCE") for rank in range(2)}


def test_metadata(start_workers: StartWorkers, path: Path) -> None:
    start_workers(2, settings={"HOROVOD_TIMELINE": str(path)}).run(_work)
    events = timelines.wait_for(path, _shows_work(2))
    assert events[0]["ph"] == "M"
    assert abs(events[0]["args"]["start_time_since_epoch_in_micros"] / 1e6 - time.time()) < 120
    names = timelines.row_names(events)
    assert set(WORK) <= set(names.values())
    assert len(set(names.values())) == len(names)
    assert {pid for pid, _ in timelines.metadata(events, "process_sort_index")} == set(names)
    threads = timelines.metadata(events, "thread_name")
    rows = {(pid, rank) for pid, name in names.items() if name in WORK for rank in range(2)}
    assert {row: threads[row]["name"] for row in rows} == {row: f"rank {row[1]}" for row in rows}


@every_plane
def test_repeated_and_overlapping_operations_nest(
    start_workers: StartWorkers, plane: str, path: Path
) -> None:
    start_workers(3, plane, {"HOROVOD_TIMELINE": str(path)}).run(_repeat)
    wanted = {(f"again.{i}", rank): 40 for i in range(5) for rank in range(3)}

    def seen(events: list[timelines.Event]) -> bool:
        slices, _ = timelines.drawn(events)
        found = [(one.tensor, one.rank) for one in slices if one.name == "ALLREDUCE"]
        return {row: found.count(row) for row in wanted} == wanted

    timelines.wait_for(path, seen)


def _repeat() -> None:
    hvd.init()
    for _ in range(40):
        handles = [hvd.allreduce_async(np.ones(1 << 3 * i), name=f"again.{i}") for i in range(5)]
        for handle in handles:
            hvd.synchronize(handle)
    hvd.barrier()


@pytest.mark.parametrize("mark", ["0", "1"])
def test_cycles_are_marked_on_demand(start_workers: StartWorkers, mark: str, path: Path) -> None:
    settings = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": mark}
    start_workers(2, settings=settings).run(_work)
    cycles = timelines.cycles(timelines.wait_for(path, _shows_work(2)))
    assert bool(cycles) == (mark == "1")
    assert all((event["ph"], event["s"]) == ("i", "g") and event["ts"] >= 0 for event in cycles)


def test_failed_operations_are_marked(start_workers: StartWorkers, path: Path) -> None:
    errors = start_workers(2, settings={"HOROVOD_TIMELINE": str(path)}).run(_disagree)
    assert all(error is not None and "MismatchError" in error.classes for error in errors)

    def seen(events: list[timelines.Event]) -> bool:
        slices, _ = timelines.drawn(events)
        failed = {one.rank for one in slices if one.tensor == "odd" and one.args.get("error") is True}
        return failed == {0, 1}

    slices, _ = timelines.drawn(timelines.wait_for(path, seen))
    assert not any("error" in one.args for one in slices if one.tensor != "odd")


def _disagree() -> Raised | None:
    hvd.init()
    error = error_of(hvd.allreduce, np.ones(2 + hvd.rank()), name="odd")
    hvd.allreduce(np.ones(3), name="even")
    hvd.barrier()
    return error


def test_json_while_the_job_runs_and_is_idle(start_workers: StartWorkers, path: Path) -> None:
    job = start_workers(2, settings={"HOROVOD_TIMELINE": str(path)})
    job.run(_work)
    timelines.wait_for(path, _shows_work(2))
    time.sleep(0.3)  # several times the writer's pause: everything is in the file
    assert timelines.read(path) == timelines.read(path)
    assert job.alive


@every_plane
def test_crash_of_rank_0_leaves_json(start_workers: StartWorkers, plane: str, path: Path) -> None:
    job = start_workers(3, plane, {"HOROVOD_TIMELINE": str(path)})
    with pytest.raises(RemoteError, match="exit status 3"):
        job.run(_crash, path)
    events = timelines.read(path)
    assert all(timelines.count(events, "step", rank, "ALLREDUCE") > 0 for rank in range(3))


def _crash(path: Path) -> None:
    def seen(events: list[timelines.Event]) -> bool:
        return all(timelines.count(events, "step", rank, "ALLREDUCE") for rank in range(hvd.size()))

    hvd.init()
    hvd.allreduce(np.ones(100), name="step")
    hvd.barrier()
    if hvd.rank() == 0:
        timelines.wait_for(path, seen)
    try:
        for step in range(1000):
            hvd.allreduce(np.ones(100), name="step")
            if hvd.rank() == 0 and step == 500:
                os._exit(3)
    except hvd.HorovodInternalError:
        return


@every_plane
@pytest.mark.parametrize("size", [1, 2, 3])
def test_recording_twice_on_demand(
    start_workers: StartWorkers, size: int, plane: str, tmp_path: Path
) -> None:
    job = start_workers(size, plane, {"HOROVOD_TIMELINE": "dynamic"})
    job.run(_record_twice, tmp_path)
    for name in ("first", "second"):
        events = timelines.read(tmp_path / name)
        assert set(timelines.row_names(events).values()) & set("abcd") == {"b" if name == "first" else "d"}
        assert bool(timelines.cycles(events)) == (name == "second")
    assert sorted(os.listdir(tmp_path)) == ["first", "second"]


def _record_twice(directory: Path) -> None:
    hvd.init()
    hvd.allreduce(np.ones(3), name="a")
    hvd.barrier()
    hvd.start_timeline(str(directory / "first"))
    _recorded(directory / "first", "b")
    hvd.stop_timeline()
    timelines.read(directory / "first")
    hvd.barrier()  # now every rank knows
    hvd.allreduce(np.ones(3), name="c")
    hvd.start_timeline(directory / "second", mark_cycles=True)
    _recorded(directory / "second", "d")
    hvd.stop_timeline()


def _recorded(path: Path, tensor: str) -> None:
    """Does an operation, and waits until the timeline shows it on every rank."""

    def seen(events: list[timelines.Event]) -> bool:
        return all(timelines.count(events, tensor, rank, "ALLREDUCE") for rank in range(hvd.size()))

    hvd.barrier()
    hvd.allreduce(np.ones(3), name=tensor)
    hvd.barrier()
    if hvd.rank() == 0:
        timelines.wait_for(path, seen)
    hvd.barrier()


def test_new_file_ends_the_old_one(start_workers: StartWorkers, tmp_path: Path) -> None:
    job = start_workers(2, settings={"HOROVOD_TIMELINE": str(tmp_path / "first")})
    job.run(_replace, tmp_path)
    found = {
        name: set(timelines.row_names(timelines.read(tmp_path / name)).values()) & set("abc")
        for name in ("first", "second", "third")
    }
    assert found == {"first": {"a"}, "second": {"b"}, "third": {"c"}}


def _replace(directory: Path) -> None:
    hvd.init()
    _recorded(directory / "first", "a")
    hvd.start_timeline(directory / "second")
    _recorded(directory / "second", "b")
    hvd.start_timeline(directory / "third")
    _recorded(directory / "third", "c")
    hvd.shutdown()


def test_rules(start_workers: StartWorkers, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere" / "x.json")
    results = start_workers(2, settings={"HOROVOD_TIMELINE": "DYNAMIC"}).run(_misuse, nowhere)
    before = [error for early, _ in results for error in early]
    unwritable = [error for _, error in results]
    assert all(error is not None and "ValueError" in error.classes for error in before)
    assert unwritable[0] is not None
    assert unwritable[0].classes[0] == "ValueError"
    assert nowhere in unwritable[0].message
    assert unwritable[1] is None


def _misuse(nowhere: str) -> tuple[tuple[Raised | None, Raised | None], Raised | None]:
    before = error_of(hvd.start_timeline, nowhere), error_of(hvd.stop_timeline)
    hvd.init()
    hvd.stop_timeline()
    error = error_of(hvd.start_timeline, nowhere)
    hvd.allreduce(np.ones(3), name="x")
    hvd.stop_timeline()
    return before, error


def test_not_allowed_unless_the_variable_is_set(start_workers: StartWorkers, path: Path) -> None:
    for error in start_workers(2).run(_start_unasked, str(path)):
        assert error is not None
        assert error.classes[0] == "ValueError"
        assert "HOROVOD_TIMELINE" in error.message
    assert not path.exists()


def _start_unasked(path: str) -> Raised | None:
    hvd.init()
    hvd.stop_timeline()
    error = error_of(hvd.start_timeline, path)
    hvd.barrier()
    return error


def test_unwritable_file_stops_no_job(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere" / "x.json")
    script = "import horovod.numpy as hvd; hvd.init(); print(hvd.allreduce([7.0], name='x'))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**clean_environment(), "HOROVOD_TIMELINE": nowhere},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[7.]\n"
    assert nowhere in done.stderr
    assert "without a timeline" in done.stderr


def test_horovodrun_records(path: Path) -> None:
    script = "import horovod.numpy as hvd; hvd.init(); hvd.allreduce([1.0], name='x')"
    subprocess.run(
        [HOROVODRUN, "-np", "2", "--timeline-filename", str(path), sys.executable, "-c", script],
        env=clean_environment(),
        timeout=60,
        check=True,
    )
    assert timelines.count(timelines.read(path), "x", 0, "ALLREDUCE") == 1
