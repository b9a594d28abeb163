"""The goals of this milestone as data: what, how much, and how to read it from the results.

They restate `shared/design/performance.md`; the training goals belong to later milestones.
A goal over several sizes is judged by its worst one, which the row names.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks import stats
from benchmarks.peers import MPI_NAMES
from benchmarks.results import Results
from benchmarks.units import MIB, length

Reading = tuple[float, str]  # a value and which case it is of
Read = Callable[[Results], Reading | None]


@dataclass(frozen=True)
class Goal:
    """Something to reach."""

    what: str
    bound: Literal["at most", "at least"]
    limit: float
    unit: str
    read: Read

    def judge(self, results: Results) -> Verdict:
        """Compare with what was measured."""
        reading = self.read(results)
        if reading is None:
            return Verdict(self.what, self.bound, self.limit, self.unit)
        value, where = reading
        met = value <= self.limit if self.bound == "at most" else value >= self.limit
        return Verdict(self.what, self.bound, self.limit, self.unit, value, met, where)


@dataclass(frozen=True)
class Verdict:
    """A goal beside its measured value; `met` is None when it was not measured."""

    what: str
    bound: str
    limit: float
    unit: str
    value: float | None = None
    met: bool | None = None
    where: str = ""

    @property
    def margin(self) -> str:
        """By how much: how many times better than asked, or how many times short."""
        if self.value is None:
            return ""
        above, below = (self.limit, self.value) if self.bound == "at most" else (self.value, self.limit)
        if below <= 0 or above <= 0:
            return f"{abs(self.limit - self.value):.3g} {self.unit} {'better' if self.met else 'short'}"
        factor = above / below
        return f"{factor:.2f}x better" if factor >= 1 else f"{1 / factor:.2f}x short"

    def as_dict(self) -> dict[str, Any]:
        """For the JSON."""
        return asdict(self) | {"margin": self.margin}


def judge_all(results: Results) -> list[Verdict]:
    """Every declared goal against these results."""
    return [goal.judge(results) for goal in GOALS]


def _metric(scenario: str, metric: str, **key: Any) -> Read:
    def read(results: Results) -> Reading | None:
        value = results.value(scenario, "hvd", metric, **key)
        return None if value is None else (value, "")

    return read


def _latency(state: str) -> Read:
    """The median, with what it hides beside it."""

    def read(results: Results) -> Reading | None:
        row = results.find("latency", "hvd", state=state, bytes=4)
        if row is None or not row.median:
            return None
        return row.median["us"], f"p99 {row.median['p99_us']:.0f} us, loop {row.median['loop_us']:.0f} us"

    return read


def _negotiation(results: Results) -> Reading | None:
    nanoseconds = results.value("batches", "hvd", "counter.negotiate_ns", tensors=1000, place="in")
    return None if nanoseconds is None else (nanoseconds / 1e6, "")


def _worst(readings: Iterable[tuple[float | None, str]], pick: Callable[..., Reading]) -> Reading | None:
    known = [(value, where) for value, where in readings if value is not None]
    return pick(known) if known else None


def _speedup(peers: tuple[str, ...], ranks: tuple[int, ...], from_mib: int = 1) -> Read:
    """The least speed-up in place over the fastest of the peers, over sizes and world sizes."""

    def asked(key: dict[str, Any]) -> bool:
        return key["place"] == "in" and key["ranks"] in ranks and key["bytes"] >= from_mib * MIB

    return _least_speedup("bandwidth", peers, asked)


def _least_speedup(scenario: str, peers: tuple[str, ...], asked: Callable[[dict[str, Any]], bool]) -> Read:
    """The least speed-up over the fastest of the peers, over the keys that are asked for."""

    def fastest(results: Results, key: dict[str, Any]) -> float | None:
        ratios = [results.speedup(scenario, peer, **key) for peer in peers]
        return min((ratio for ratio in ratios if ratio is not None), default=None)

    def read(results: Results) -> Reading | None:
        keys = [key for key in results.keys(scenario) if asked(key)]
        return _worst(((fastest(results, key), _case(key)) for key in keys), min)

    return read


def _over_float32(format: str) -> Read:
    """The greatest ratio of its time to that of float32 of as many bytes, round by round."""

    def read(results: Results) -> Reading | None:
        keys = [key for key in results.keys("halves") if key["format"] == format]
        return _worst(((results.over_float32("hvd", **key), _case(key)) for key in keys), max)

    return read


def _recording(tensors: int) -> Read:
    """How much longer it takes with a timeline than without, and how much that differed between rounds."""

    def read(results: Results) -> Reading | None:
        off = results.find("timeline", "hvd", tensors=tensors)
        on = results.find("timeline", "hvd-timeline", tensors=tensors)
        pairs = stats.ratios(on.series("us"), off.series("us")) if on and off else []
        if not pairs:
            return None
        longer = [(pair - 1) * 100 for pair in pairs]
        low, high = stats.middle_half(longer)
        return statistics.median(longer), f"half of {len(longer)} rounds: {low:.1f} to {high:.1f} %"

    return read


def _out_over_in(results: Results) -> Reading | None:
    """The greatest ratio of out-of-place to in-place time, round by round."""

    def ratio(key: dict[str, Any]) -> float | None:
        out = results.find("bandwidth", "hvd", **key)
        inside = results.find("bandwidth", "hvd", **key | {"place": "in"})
        return stats.ratio(out.series("us"), inside.series("us")) if out and inside else None

    keys = [key for key in results.keys("bandwidth") if key["place"] == "out"]
    return _worst(((ratio(key), _case(key)) for key in keys), max)


def _four_over_two(results: Results) -> Reading | None:
    case = {"bytes": 64 * MIB, "place": "in"}
    four = results.value("bandwidth", "hvd", "us", ranks=4, **case)
    two = results.value("bandwidth", "hvd", "us", ranks=2, **case)
    return (four / two, "") if four and two else None


def _memory(results: Results) -> Reading | None:
    keys = results.keys("memory")
    found = ((results.value("memory", "hvd", "engine_mb", **key), _case(key)) for key in keys)
    return _worst(found, max)


def _slowest(until: str) -> Read:
    """The longest that any repetition took, with the median of its case."""

    def read(results: Results) -> Reading | None:
        rows = [row for row in results.rows if row.scenario == "faults" and row.key["until"] == until]
        found = [
            (max(row.series("seconds")), f"{row.key['what']}; median {row.median['seconds']:.3f} s")
            for row in rows
            if row.median
        ]
        return max(found, default=None)

    return read


def _case(key: dict[str, Any]) -> str:
    place = "in place" if key["place"] == "in" else "out of place"
    what = key.get("operation") or key.get("format")
    return f"{f'{what}, ' if what else ''}{length(key['bytes'])} {place}, {key['ranks']} ranks"


RUN_PASS = {"what": "horovodrun -np 2 python -c pass"}

GOALS = (
    Goal("4 B allreduce, hot", "at most", 15, "us", _latency("hot")),
    Goal("4 B allreduce, cold", "at most", 120, "us", _latency("cold")),
    Goal("4 B allreduce, loaded", "at most", 40, "us", _latency("loaded")),
    Goal("idle engine, processor", "at most", 0.1, "% of a core", _metric("idle", "cpu_percent")),
    Goal("idle engine, wake-ups", "at most", 2, "per s", _metric("idle", "wakeups_per_second")),
    Goal(
        "160 async tensors of 1 KiB, in place",
        "at most",
        400,
        "us",
        _metric("batches", "us", tensors=160, place="in"),
    ),
    Goal(
        "160 async tensors of 1 KiB, out of place",
        "at most",
        600,
        "us",
        _metric("batches", "us", tensors=160, place="out"),
    ),
    Goal(
        "negotiation of 1,000 tensors, per step and rank",
        "at most",
        1,
        "ms",
        _negotiation,
    ),
    Goal(
        "submitting one gradient",
        "at most",
        5,
        "us",
        _metric("batches", "submit_us", tensors=1000, place="in"),
    ),
    Goal("2 ranks in place, over Gloo", "at least", 4, "x", _speedup(("gloo",), (2,))),
    Goal("2 ranks in place from 64 MiB, over raw MPI", "at least", 2, "x", _speedup(MPI_NAMES, (2,), 64)),
    Goal("2 ranks in place, over the shm prototype's scheme", "at least", 1, "x", _speedup(("shm",), (2,))),
    Goal("3 and 4 ranks in place, over raw MPI", "at least", 1, "x", _speedup(MPI_NAMES, (3, 4))),
    Goal("64 MiB in place, 4 ranks over 2 ranks", "at most", 3.5, "x the time", _four_over_two),
    Goal("out of place over in place", "at most", 1.5, "x the time", _out_over_in),
    Goal(
        "other operations, over Gloo",
        "at least",
        1,
        "x",
        _least_speedup("operations", ("gloo",), lambda _: True),
    ),
    Goal(
        "other operations from 1 MiB, over raw MPI",
        "at least",
        1,
        "x",
        _least_speedup("operations", MPI_NAMES, lambda key: key["bytes"] >= MIB),
    ),
    Goal(
        "float16, bfloat16 and fp16 compression in place, over Gloo",
        "at least",
        1,
        "x",
        _least_speedup("halves", ("gloo",), lambda key: key["format"] != "float32"),
    ),
    Goal("float16 over float32 of as many bytes", "at most", 1, "x the time", _over_float32("float16")),
    Goal("bfloat16 over float32 of as many bytes", "at most", 1, "x the time", _over_float32("bfloat16")),
    Goal("timeline, 100 async tensors of 64 KiB", "at most", 2, "% more time", _recording(100)),
    Goal("timeline, 1 MiB allreduce", "at most", 2, "% more time", _recording(1)),
    Goal("engine memory per rank", "at most", 64, "MB", _memory),
    Goal(
        "horovodrun -np 2 over plain python",
        "at most",
        0.5,
        "s",
        _metric("startup", "over_python", **RUN_PASS),
    ),
    Goal("a rank is lost, every survivor has its error", "at most", 0.5, "s", _slowest("lost")),
    Goal("a rank is killed, horovodrun has ended", "at most", 2, "s", _slowest("ended")),
    Goal("Ctrl-C of horovodrun, all are gone", "at most", 2, "s", _slowest("interrupted")),
    Goal("import horovod", "at most", 0.1, "s", _metric("startup", "seconds", what="import horovod")),
)
