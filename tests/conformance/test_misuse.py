"""What one rank can see alone is refused at the call, in every operation, and nothing else happens."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conformance.calls import SUM
from tests.conformance.frontends import Frontend, frontend_of
from tests.conformance.marks import every_frontend, on_worlds
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

Start = Callable[[Any, Any, str], int]

STARTS: dict[str, Start] = {
    "allreduce": lambda hvd, t, name: hvd.allreduce_async(t, name=name, op=SUM),
    "allreduce in place": lambda hvd, t, name: hvd.allreduce_async_(t, name=name, op=SUM),
    "grouped_allreduce": lambda hvd, t, name: hvd.grouped_allreduce_async([t, t], name=name, op=SUM),
    "allgather": lambda hvd, t, name: hvd.allgather_async(t, name=name),
    "grouped_allgather": lambda hvd, t, name: hvd.grouped_allgather_async([t, t], name=name),
    "broadcast": lambda hvd, t, name: hvd.broadcast_async(t, 0, name=name),
    "alltoall": lambda hvd, t, name: hvd.alltoall_async(t, name=name),
    "reducescatter": lambda hvd, t, name: hvd.reducescatter_async(t, name=name),
    "grouped_reducescatter": lambda hvd, t, name: hvd.grouped_reducescatter_async([t, t], name=name),
}
every_start = pytest.mark.parametrize("kind", STARTS)


@every_frontend
@on_worlds(2, 3)
@every_start
def test_a_name_in_flight(world: Workers, frontend: str, kind: str) -> None:
    outcomes = world.run(_name_in_flight, frontend, STARTS[kind])
    assert_raised(outcomes[:1], "ValueError", "twice", "in flight")


def _name_in_flight(frontend: str, start: Start) -> Raised | None:
    front = frontend_of(frontend)
    hvd, outcome, tensor = front.hvd, None, front.tensor(np.ones(6))
    if hvd.rank() == 0:
        handle = start(hvd, tensor, "twice")
        outcome = error_of(start, hvd, tensor, "twice")
    hvd.barrier()  # until here no other rank submits it, so that it is in flight for sure
    if hvd.rank() != 0:
        handle = start(hvd, tensor, "twice")
    hvd.synchronize(handle)
    hvd.synchronize(start(hvd, tensor, "twice"))  # the name is free again
    return outcome


@every_frontend
@on_worlds(2)
def test_a_name_for_each_kind(world: Workers, frontend: str) -> None:
    """Of different operations, the same name is not the same."""
    world.run(_one_name_for_all, frontend)


def _one_name_for_all(frontend: str) -> None:
    front = frontend_of(frontend)
    tensors = [front.tensor(np.ones(6)) for _ in STARTS]
    starts = [start for kind, start in STARTS.items() if kind != "allreduce in place"]
    handles = [start(front.hvd, t, "shared") for start, t in zip(starts, tensors[1:], strict=True)]
    for handle in handles:
        front.hvd.synchronize(handle)


UNSUPPORTED = {
    "complex64": np.ones(4, np.complex64),
    "uint32": np.ones(4, np.uint32),
    "uint64": np.ones(4, np.uint64),
    "object": np.array([1, None, "x", 2], object),
    "text": np.array(["a", "bc", "d", "e"]),
    "big-endian": np.ones(4, ">f4"),
    "longdouble": np.ones(4, np.longdouble),
    "record": np.zeros(4, [("x", "f4"), ("y", "i4")]),
}


@on_worlds(2)
@every_start
@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_unsupported_types(world: Workers, kind: str, dtype: str) -> None:
    """Those of numpy; other frontends have others, see their own tests."""
    outcomes = world.run(_refused, "numpy", STARTS[kind], UNSUPPORTED[dtype])
    assert_raised(outcomes[:1], "ValueError")


def _refused(frontend: str, start: Start, array: np.ndarray) -> Raised | None:
    """The error of a call that only rank 0 makes; afterwards unnamed operations still match."""
    front = frontend_of(frontend)
    outcome = error_of(start, front.hvd, array, "refused") if front.hvd.rank() == 0 else None
    total = front.array(front.hvd.allreduce(front.tensor(np.ones(3)), op=SUM))
    assert total.tolist() == [front.hvd.size()] * 3
    return outcome


ONLY_RANK_0: dict[str, tuple[Callable[[Frontend], Any], str]] = {
    "allreduce_ of a view": (lambda f: f.hvd.allreduce_(f.tensor(np.ones((4, 4)))[:, ::2]), "contiguous"),
    "grouped_allreduce_ of a view": (
        lambda f: f.hvd.grouped_allreduce_([f.tensor(np.ones(2)), f.tensor(np.ones((4, 4)))[:, ::2]]),
        "contiguous",
    ),
    "broadcast_ of a view": (lambda f: f.hvd.broadcast_(f.tensor(np.ones((4, 4)))[:, ::2], 0), "contiguous"),
    "both average and op": (
        lambda f: f.hvd.allreduce(f.tensor(np.ones(2)), average=True, op=SUM),
        "only one",
    ),
    "both, of a group": (
        lambda f: f.hvd.grouped_allreduce([f.tensor(np.ones(2))], average=True, op=SUM),
        "only one",
    ),
    "an unknown op": (lambda f: f.hvd.allreduce(f.tensor(np.ones(2)), op=6), "op is"),
    "an unknown op of a group": (lambda f: f.hvd.grouped_allreduce([f.tensor(np.ones(2))], op=-1), "op is"),
    "an infinite factor": (
        lambda f: f.hvd.reducescatter(f.tensor(np.ones(2)), prescale_factor=float("inf")),
        "finite",
    ),
    "a factor that is none": (
        lambda f: f.hvd.grouped_allreduce([f.tensor(np.ones(2))], postscale_factor=float("nan")),
        "finite",
    ),
    "a root out of range": (lambda f: f.hvd.broadcast(f.tensor(np.ones(2)), f.hvd.size()), "root"),
}


@every_frontend
@on_worlds(1, 2)
@pytest.mark.parametrize("case", ONLY_RANK_0)
def test_refused_at_the_call(world: Workers, frontend: str, case: str) -> None:
    call, part = ONLY_RANK_0[case]
    outcomes = world.run(_refused_call, frontend, call)
    assert_raised(outcomes[:1], "ValueError", part)


def _refused_call(frontend: str, call: Callable[[Frontend], Any]) -> Raised | None:
    front = frontend_of(frontend)
    return _refused(frontend, lambda *_: call(front), np.ones(0))


@every_frontend
@on_worlds(2)
@pytest.mark.parametrize("function", ["grouped_allreduce", "grouped_allreduce_"])
@pytest.mark.parametrize("average", [True, False])
def test_average_of_groups_is_deprecated(world: Workers, frontend: str, function: str, average: bool) -> None:
    wanted = ([1.0 if average else 2.0] * 2, ["DeprecationWarning"])
    assert world.run(_deprecated, frontend, function, average) == [wanted] * 2


def _deprecated(frontend: str, function: str, average: bool) -> tuple[list[float], list[str]]:
    front = frontend_of(frontend)
    tensors = [front.tensor(np.ones(1)), front.tensor(np.ones(1, "f4"))]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        results = getattr(front.hvd, function)(tensors, average)
    return [float(front.array(r)[0]) for r in results], [w.category.__name__ for w in seen]
