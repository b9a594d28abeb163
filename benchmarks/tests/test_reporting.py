"""The pure parts: statistics, goals, tables, the README's markers, the picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import goals, readme, report, stats
from benchmarks.cases import Calls, packed
from benchmarks.results import Results, Row
from benchmarks.scenarios import timeline
from benchmarks.units import MIB

MACHINE = {
    "date": "today",
    "cpu": "a processor",
    "cores": 2,
    "memory_gb": 1.0,
    "kernel": "6",
    "load_before": 0.0,
    "python": "3",
    "commit": "0",
    "versions": {"numpy": "2"},
}


def _rank(entered: list[int], returned: list[int], **counters: int) -> dict[str, object]:
    times = {"entered": packed(entered), "submitted": packed(returned), "returned": packed(returned)}
    return {**times, "cpu_ns": 0, "voluntary": 0, "involuntary": 0, "counters": counters}


def _row(scenario: str, peer: str, us: float, **key: object) -> Row:
    metrics = {"us": us, "p99_us": us * 2, "loop_us": us, "GB/s": 1e3 / us, "submit_us": 1.0}
    return Row(scenario, peer, key, rounds=[metrics, metrics]).finish()


def _results() -> Results:
    latency = [_row("latency", peer, 10.0, state="hot", bytes=4, ranks=2) for peer in ("hvd", "gloo")]
    times = {("hvd", "in"): 100.0, ("hvd", "out"): 120.0, ("gloo", "in"): 500.0, ("openmpi", "in"): 150.0}
    large = [
        _row("bandwidth", peer, us * ranks, bytes=64 * MIB, place=place, ranks=ranks)
        for ranks in (2, 4)
        for (peer, place), us in times.items()
    ]
    return Results(
        MACHINE, latency + large + _operation_rows() + _half_rows() + _timeline_rows() + _fault_rows()
    )


def _operation_rows() -> list[Row]:
    times = {
        ("hvd", 4096): 10.0,
        ("gloo", 4096): 90.0,
        ("mpich", 4096): 5.0,
        ("hvd", MIB): 100.0,
        ("gloo", MIB): 300.0,
        ("mpich", MIB): 110.0,
    }
    return [
        _row("operations", peer, us, operation="alltoall", bytes=length, place="out", ranks=4)
        for (peer, length), us in times.items()
    ]


def _half_rows() -> list[Row]:
    times = {
        ("hvd", "float32"): 100.0,
        ("gloo", "float32"): 90.0,
        ("hvd", "float16"): 95.0,
        ("gloo", "float16"): 190.0,
        ("hvd", "bfloat16"): 125.0,
        ("hvd", "fp16 wire"): 60.0,
    }
    return [
        _row("halves", peer, us, format=format, bytes=MIB, place="in", ranks=2)
        for (peer, format), us in times.items()
    ]


def _timeline_rows() -> list[Row]:
    return [
        _row("timeline", peer, us, tensors=100, bytes=65536, place="in", ranks=2)
        for peer, us in {"hvd": 1000.0, "hvd-timeline": 1010.0}.items()
    ]


def _fault_rows() -> list[Row]:
    times = {
        ("a kill", "lost"): [0.1, 0.3],
        ("an exit", "lost"): [0.2, 0.6],
        ("Ctrl-C", "interrupted"): [1, 1],
    }
    return [
        Row("faults", "hvd", {"what": what, "until": until}, rounds=[{"seconds": s} for s in found]).finish()
        for (what, until), found in times.items()
    ]


def test_completion_counts_from_the_last_arrival_to_the_last_return() -> None:
    ranks = [_rank([0, 10_000], [9_000, 16_000]), _rank([4_000, 11_000], [5_000, 12_000])]
    metrics = stats.calls_metrics(Calls(4, calls=2), ranks, communicates=True)
    assert metrics["us"] == pytest.approx((5 + 5) / 2)
    assert metrics["last_arrival_us"] == pytest.approx(1)
    assert metrics["loop_us"] == pytest.approx(8)


def test_counters_are_per_call_of_the_busiest_rank() -> None:
    ranks = [_rank([0, 2], [1, 3], plans=4), _rank([0, 2], [1, 3], plans=6)]
    assert stats.calls_metrics(Calls(4, calls=2), ranks, communicates=True)["counter.plans"] == 3


@pytest.mark.parametrize(
    ("what", "value", "met"),
    [
        ("4 B allreduce, hot", 10.0, True),
        ("2 ranks in place, over Gloo", 5.0, True),
        ("2 ranks in place from 64 MiB, over raw MPI", 1.5, False),
        ("64 MiB in place, 4 ranks over 2 ranks", 2.0, True),
        ("out of place over in place", 1.2, True),
        ("other operations, over Gloo", 3.0, True),
        ("other operations from 1 MiB, over raw MPI", 1.1, True),
        ("float16, bfloat16 and fp16 compression in place, over Gloo", 2.0, True),
        ("float16 over float32 of as many bytes", 0.95, True),
        ("bfloat16 over float32 of as many bytes", 1.25, False),
        ("timeline, 100 async tensors of 64 KiB", 1.0, True),
        ("timeline, 1 MiB allreduce", None, None),
        ("a rank is lost, every survivor has its error", 0.6, False),
        ("a rank is killed, horovodrun has ended", None, None),
        ("Ctrl-C of horovodrun, all are gone", 1.0, True),
        ("import horovod", None, None),
    ],
)
def test_goals_read_the_results(what: str, value: float | None, met: bool | None) -> None:
    verdict = next(verdict for verdict in goals.judge_all(_results()) if verdict.what == what)
    assert verdict.met is met
    assert verdict.value == (None if value is None else pytest.approx(value))


def test_the_document_has_every_table_that_was_measured() -> None:
    results = _results()
    text = report.document(results, goals.judge_all(results))
    assert "### Latency" in text
    assert "5.00x" in text
    assert "1.33x short" in text
    assert "### Other operations" in text
    assert "### Half precision" in text
    assert "1.010x" in text
    assert "alltoall, 4 KiB out of place" not in text  # not the worst over Gloo, and MPI counts from 1 MiB
    assert "alltoall, 1 MiB out of place, 4 ranks" in text
    assert "an exit; median 0.400 s" in text
    assert "### Idle" not in text


def test_the_rounds_of_several_worlds_make_one_row() -> None:
    off, on = timeline._joined(_timeline_rows() + _timeline_rows())
    assert (off.peer, on.peer) == ("hvd", "hvd-timeline")
    assert len(off.rounds) == len(on.rounds) == 4


def test_a_failure_on_one_of_several_worlds_is_one_of_the_row() -> None:
    good, bad = _timeline_rows()[0], Row("timeline", "hvd", _timeline_rows()[0].key, "failed", "why")
    (row,) = timeline._joined([good, bad])
    assert (row.status, row.error) == ("failed", "why")


def test_tables_replace_what_is_between_the_markers() -> None:
    begin, end = "<!-- some: begin (written by --write-readme) -->", "<!-- some: end -->"
    text = readme.replace_results(f"a\n{begin}\nold\n{end}\nz\n", "new\n", "some")
    assert text == f"a\n{begin}\n\nnew\n\n{end}\nz\n"


def test_results_survive_a_file(tmp_path: Path) -> None:
    results = _results()
    results.save(tmp_path / "results.json", [])
    assert Results.load(tmp_path / "results.json") == results


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import plot

    assert plot.draw(_results(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
