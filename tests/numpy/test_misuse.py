"""Misuse that one rank can see alone: a clear error at the call, and nothing else happens."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support.marks import on_worlds
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers, clean_environment

FORMS = ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_"]
every_form = pytest.mark.parametrize("form", FORMS)

UNSUPPORTED = {
    "complex64": np.ones(3, np.complex64),
    "complex128": np.ones(3, np.complex128),
    "object": np.array([1, None, "x"], object),
    "big-endian": np.ones(3, ">f4"),
    "big-endian int": np.ones(3, ">i8"),
    "text": np.array(["a", "bc"]),
    "bytes": np.array([b"a", b"bc"]),
    "bool": np.ones(3, bool),
    "uint32": np.ones(3, np.uint32),
    "uint64": np.ones(3, np.uint64),
    "longdouble": np.ones(3, np.longdouble),
    "datetime": np.array(["2026-01-01"], "datetime64[D]"),
    "record": np.zeros(3, [("x", "f4"), ("y", "i4")]),
    "subarray": np.zeros(3, [("x", "f4", 3)]),
}


def _refused(make: Callable[[], Any]) -> Raised | None:
    """The error of a call that only rank 0 makes; afterwards unnamed operations still match."""
    outcome = error_of(make) if hvd.rank() == 0 else None
    assert np.all(hvd.allreduce(np.ones(3), op=hvd.Sum) == hvd.size())
    return outcome


@on_worlds(1, 2)
@every_form
@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_unsupported_dtypes(world: Workers, form: str, kind: str) -> None:
    array = UNSUPPORTED[kind]
    outcomes = world.run(_refused, lambda: getattr(hvd, form)(array))
    assert_raised(outcomes[:1], "ValueError")


@on_worlds(1, 2)
@pytest.mark.parametrize("kind", ["complex64", "uint32", "object", "text", "big-endian"])
def test_unsupported_dtypes_are_named(world: Workers, kind: str) -> None:
    array = UNSUPPORTED[kind]
    outcomes = world.run(_refused, lambda: hvd.allreduce(array))
    assert_raised(outcomes[:1], "ValueError", "support")


@on_worlds(1, 2)
@every_form
@pytest.mark.parametrize("op", [-1, 6, 99, "Sum", 1.5])
def test_unknown_reductions(world: Workers, form: str, op: object) -> None:
    outcomes = world.run(_refused, lambda: getattr(hvd, form)(np.ones(3), op=op))
    assert_raised(outcomes[:1], "ValueError", "op is", "hvd.Sum")


@on_worlds(3)
@every_form
def test_adasum_needs_a_power_of_two(world: Workers, form: str) -> None:
    outcomes = world.run(_refused, lambda: getattr(hvd, form)(np.ones(3), op=hvd.Adasum))
    assert_raised(outcomes[:1], "NotImplementedError", "Adasum")


@on_worlds(3)
def test_adasum_of_a_graph_that_was_made_for_another_world(world: Workers) -> None:
    """The engine looks again."""
    outcomes = world.run(_refused, _adasum_by_the_engine)
    assert_raised(outcomes[:1], "ValueError", "needs 1, 2, 4, 8, ... of them, not 3")


def _adasum_by_the_engine() -> None:
    from horovod._core.runtime import engine

    data = np.ones(3)
    engine().allreduce("adasum", data, data, int(hvd.Adasum), 1.0, 1.0, 0, 0)


@on_worlds(1, 2)
def test_more_rows_than_there_can_be(world: Workers) -> None:
    """Though they have no bytes."""
    huge = np.zeros((1 << 45, 0))
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        outcomes = world.run(_refused, lambda call=call: call(huge))
        assert_raised(outcomes[:1], "ValueError", "at most 17592186044416 rows")


@on_worlds(1, 2)
@every_form
@pytest.mark.parametrize("average", [True, False])
def test_average_is_deprecated(world: Workers, form: str, average: bool) -> None:
    results = world.run(_average, form, average)
    assert results == [(1.0 if average else float(len(results)), ["DeprecationWarning"], __file__)] * len(
        results
    )


def _average(form: str, average: bool) -> tuple[float, list[str], str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = getattr(hvd, form)(np.ones(3), average)
    if form.endswith(("async", "async_")):
        result = hvd.synchronize(result)
    return float(result[0]), [w.category.__name__ for w in seen], seen[0].filename


@on_worlds(1, 2)
@every_form
@pytest.mark.parametrize("average", [True, False])
def test_average_and_op(world: Workers, form: str, average: bool) -> None:
    outcomes = world.run(_refused, lambda: getattr(hvd, form)(np.ones(3), average=average, op=hvd.Sum))
    assert_raised(outcomes[:1], "ValueError", "only one")


@on_worlds(1, 2)
@pytest.mark.parametrize("form", ["allreduce_", "allreduce_async_", "broadcast_", "broadcast_async_"])
def test_read_only_output(world: Workers, form: str) -> None:
    args = (0,) if form.startswith("broadcast") else ()
    outcomes = world.run(_refused, lambda: getattr(hvd, form)(_read_only(), *args))
    assert_raised(outcomes[:1], "ValueError", "writable")


def _read_only() -> np.ndarray:
    array = np.ones(3)
    array.flags.writeable = False
    return array


@on_worlds(1, 2)
def test_read_only_input_is_fine(world: Workers) -> None:
    results = world.run(lambda: hvd.allreduce(_read_only(), op=hvd.Sum)[0])
    assert results == [len(results)] * len(results)


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("form", ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"])
@pytest.mark.parametrize("root", [-1, 3, 2**31 - 1])
def test_root_out_of_range(world: Workers, form: str, root: int) -> None:
    outcomes = world.run(_refused, lambda: getattr(hvd, form)(np.ones(3), root))
    assert_raised(outcomes[:1], "ValueError", "root", str(root))


@on_worlds(1, 2)
@every_form
@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", ["prescale_factor", "postscale_factor"])
def test_factors_must_be_finite(world: Workers, form: str, factor: float, which: str) -> None:
    outcomes = world.run(_refused, lambda: getattr(hvd, form)(np.ones(3), **{which: factor}))
    assert_raised(outcomes[:1], "ValueError", "finite")


@on_worlds(1, 2)
@pytest.mark.parametrize("form", ["allreduce_", "allreduce_async_"])
@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, "text", np.float32(1)], ids=str)
def test_in_place_needs_an_array(world: Workers, form: str, value: object) -> None:
    outcomes = world.run(_refused, lambda: getattr(hvd, form)(value))
    assert_raised(outcomes[:1], "ValueError")


@on_worlds(2, 3)
@pytest.mark.parametrize("count", [3, 5000], ids=["inline", "plane"])
@pytest.mark.parametrize("form", FORMS)
def test_name_in_flight(world: Workers, count: int, form: str) -> None:
    outcomes = world.run(_name_in_flight, count, form)
    assert_raised(outcomes[:1], "ValueError", "'allreduce.twice'", "in flight")


def _name_in_flight(count: int, form: str) -> Raised | None:
    outcome = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(count), name="twice", op=hvd.Sum)
        outcome = error_of(getattr(hvd, form), np.ones(count), name="twice")
    hvd.barrier()  # until here no other rank submits it, so that it is in flight for sure
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(np.ones(count), name="twice", op=hvd.Sum)
    assert np.all(hvd.synchronize(handle) == hvd.size())
    assert np.all(hvd.allreduce(np.ones(count), name="twice") == 1)  # the name is free again
    return outcome


@on_worlds(1, 2)
@pytest.mark.parametrize("name", ["", "жук/0:µ", "a b\n", "x" * 5000, "y" * 300_000, "nul\0a"], ids=len)
def test_any_name(world: Workers, name: str) -> None:
    results = world.run(
        lambda: [float(hvd.allreduce(np.ones(3), name=name, op=hvd.Sum)[0]) for _ in range(3)]
    )
    assert results == [[len(results)] * 3] * len(results)


@on_worlds(1, 2)
def test_names_that_differ_after_a_nul(world: Workers) -> None:
    world.run(_nul_names)


def _nul_names() -> None:
    handles = [hvd.allreduce_async(np.full(2, i), name=f"nul\0{i}", op=hvd.Sum) for i in range(5)]
    assert [int(hvd.synchronize(handle)[0]) for handle in handles] == [i * hvd.size() for i in range(5)]


@on_worlds(1, 2)
def test_name_that_is_no_text(world: Workers) -> None:
    outcomes = world.run(_refused, lambda: hvd.allreduce(np.ones(3), name="\ud800"))
    assert_raised(outcomes[:1], "ValueError")


@on_worlds(2)
@pytest.mark.parametrize("ndim", [1, 32, 64])
def test_many_dimensions(world: Workers, ndim: int) -> None:
    results = world.run(lambda: hvd.allreduce(np.ones((1,) * ndim), op=hvd.Sum).ndim)
    assert results == [ndim, ndim]


BEFORE_INIT = {
    "rank": lambda: hvd.rank(),
    "size": lambda: hvd.size(),
    "local_rank": lambda: hvd.local_rank(),
    "local_size": lambda: hvd.local_size(),
    "cross_rank": lambda: hvd.cross_rank(),
    "cross_size": lambda: hvd.cross_size(),
    "allreduce": lambda: hvd.allreduce(np.ones(3)),
    "allreduce_": lambda: hvd.allreduce_(np.ones(3)),
    "allreduce_async": lambda: hvd.allreduce_async(np.ones(3)),
    "allreduce_async_": lambda: hvd.allreduce_async_(np.ones(3)),
    "broadcast": lambda: hvd.broadcast(np.ones(3), 0),
    "broadcast_": lambda: hvd.broadcast_(np.ones(3), 0),
    "broadcast_async": lambda: hvd.broadcast_async(np.ones(3), 0),
    "broadcast_async_": lambda: hvd.broadcast_async_(np.ones(3), 0),
    "grouped_allreduce": lambda: hvd.grouped_allreduce([np.ones(3)]),
    "grouped_allreduce_": lambda: hvd.grouped_allreduce_([np.ones(3)]),
    "grouped_allreduce_async": lambda: hvd.grouped_allreduce_async([np.ones(3)]),
    "grouped_allreduce_async_": lambda: hvd.grouped_allreduce_async_([np.ones(3)]),
    "allgather": lambda: hvd.allgather(np.ones(3)),
    "allgather_async": lambda: hvd.allgather_async(np.ones(3)),
    "grouped_allgather": lambda: hvd.grouped_allgather([np.ones(3)]),
    "grouped_allgather_async": lambda: hvd.grouped_allgather_async([np.ones(3)]),
    "alltoall": lambda: hvd.alltoall(np.ones(3)),
    "alltoall_async": lambda: hvd.alltoall_async(np.ones(3)),
    "reducescatter": lambda: hvd.reducescatter(np.ones(3)),
    "reducescatter_async": lambda: hvd.reducescatter_async(np.ones(3)),
    "grouped_reducescatter": lambda: hvd.grouped_reducescatter([np.ones(3)]),
    "grouped_reducescatter_async": lambda: hvd.grouped_reducescatter_async([np.ones(3)]),
    "broadcast_object": lambda: hvd.broadcast_object(3),
    "allgather_object": lambda: hvd.allgather_object(3),
    "add_process_set": lambda: hvd.add_process_set([0]),
    "join": lambda: hvd.join(),
    "barrier": lambda: hvd.barrier(),
    "poll": lambda: hvd.poll(1),
    "synchronize": lambda: hvd.synchronize(1),
    "counters": lambda: hvd.counters(),
}


@pytest.mark.parametrize("call", BEFORE_INIT)
def test_before_init(call: str) -> None:
    """In the test process itself, which never calls ``init()``."""
    assert not hvd.is_initialized()
    for kind in ("NotInitializedError", "HorovodInternalError", "ValueError"):
        assert_raised([error_of(BEFORE_INIT[call])], kind, "hvd.init()")


def test_shutdown_before_init_does_nothing() -> None:
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert "HOROVOD_RANK" not in clean_environment()
