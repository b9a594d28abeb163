"""Misuse that one rank can see alone: a clear error at the call, and the world goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers, clean_environment
from tests.torch.marks import on_worlds

CALLS: dict[str, Callable[[Any], Any]] = {
    "allreduce": lambda t: hvd.allreduce(t),
    "allreduce_": lambda t: hvd.allreduce_(t),
    "allreduce_async": lambda t: hvd.allreduce_async(t),
    "allreduce_async_": lambda t: hvd.allreduce_async_(t),
    "grouped_allreduce": lambda t: hvd.grouped_allreduce([t]),
    "grouped_allreduce_": lambda t: hvd.grouped_allreduce_([t]),
    "grouped_allreduce_async": lambda t: hvd.grouped_allreduce_async([t]),
    "grouped_allreduce_async_": lambda t: hvd.grouped_allreduce_async_([t]),
    "allgather": lambda t: hvd.allgather(t),
    "allgather_async": lambda t: hvd.allgather_async(t),
    "grouped_allgather": lambda t: hvd.grouped_allgather([t]),
    "grouped_allgather_async": lambda t: hvd.grouped_allgather_async([t]),
    "broadcast": lambda t: hvd.broadcast(t, 0),
    "broadcast_": lambda t: hvd.broadcast_(t, 0),
    "broadcast_async": lambda t: hvd.broadcast_async(t, 0),
    "broadcast_async_": lambda t: hvd.broadcast_async_(t, 0),
    "alltoall": lambda t: hvd.alltoall(t),
    "alltoall_async": lambda t: hvd.alltoall_async(t),
    "reducescatter": lambda t: hvd.reducescatter(t),
    "reducescatter_async": lambda t: hvd.reducescatter_async(t),
    "grouped_reducescatter": lambda t: hvd.grouped_reducescatter([t]),
    "grouped_reducescatter_async": lambda t: hvd.grouped_reducescatter_async([t]),
}

every_call = pytest.mark.parametrize("name", CALLS)


def _all_refused(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Raised | None]:
    """What calls that only rank 0 makes raise; afterwards unnamed operations still match."""
    outcomes = {}
    if hvd.rank() == 0:
        outcomes = {label: error_of(CALLS[name], value) for label, value in make().items()}
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
    return outcomes


def _strided() -> dict[str, Any]:
    return {
        "transposed": torch.ones(4, 6).t(),
        "strided": torch.ones(8, 6)[::2],
        "needs a gradient": torch.ones(4, 6, requires_grad=True).t(),
        "expanded": torch.ones(1).expand(4, 6),
    }


@on_worlds(2)
@every_call
def test_tensors_that_are_not_contiguous(world: Workers, name: str) -> None:
    for outcome in world.run(_all_refused, name, _strided)[0].values():
        assert_raised([outcome], "ValueError", "contiguous")


def _unsupported() -> dict[str, Any]:
    kinds = (torch.complex64, torch.float8_e4m3fn, torch.uint32)
    return {str(kind).removeprefix("torch."): torch.zeros(4, dtype=kind) for kind in kinds}


@on_worlds(2)
@every_call
def test_types(world: Workers, name: str) -> None:
    for outcome in world.run(_all_refused, name, _unsupported)[0].values():
        assert_raised([outcome], "ValueError", "support")


@on_worlds(2)
@pytest.mark.parametrize("name", [name for name in CALLS if "reduce" in name])
def test_bools_are_not_reduced(world: Workers, name: str) -> None:
    outcomes = world.run(_all_refused, name, lambda: {"bool": torch.zeros(4, dtype=torch.bool)})
    assert_raised([outcomes[0]["bool"]], "ValueError", "bool")


def _no_tensors() -> dict[str, Any]:
    values = [[1.0, 2.0], np.ones(4), 3.0, None, "tensor"]
    return {**{type(value).__name__: value for value in values}, "large ndarray": np.ones(400_000)}


@on_worlds(1, 2)
@every_call
def test_what_is_no_tensor(world: Workers, name: str) -> None:
    for kind, outcome in world.run(_all_refused, name, _no_tensors)[0].items():
        assert_raised([outcome], "TypeError", "torch.Tensor", kind.removeprefix("large "))


@on_worlds(2)
@every_call
def test_sparse_tensors(world: Workers, name: str) -> None:
    outcomes = world.run(_all_refused, name, lambda: {"sparse": torch.eye(4).to_sparse()})
    assert_raised([outcomes[0]["sparse"]], "ValueError", "sparse")


@on_worlds(1, 2)
@pytest.mark.parametrize("name", [name for name in CALLS if name.startswith("grouped")])
def test_groups_that_are_none(world: Workers, name: str) -> None:
    """One tensor instead of a list of them."""
    for outcome in world.run(_not_a_group, name):
        assert_raised([outcome], "TypeError", "list")


def _not_a_group(name: str) -> Raised | None:
    return error_of(getattr(hvd, name), torch.ones(4))


@on_worlds(1, 2)
@every_call
def test_process_sets_that_are_not_registered(world: Workers, name: str) -> None:
    assert_raised(world.run(_unregistered, name), "TypeError", "process set", "registered")


def _unregistered(name: str) -> Raised | None:
    options = {"root_rank": 0} if name.startswith("broadcast") else {}
    given = [torch.ones(4)] if name.startswith("grouped") else torch.ones(4)
    return error_of(getattr(hvd, name), given, process_set=hvd.ProcessSet([0]), **options)


@on_worlds(3)
def test_process_sets_of_others(world: Workers) -> None:
    outcomes = world.run(_not_a_member)
    assert outcomes[0] is None
    assert_raised(outcomes[1:2], "ValueError", "process set")


def _not_a_member() -> Raised | None:
    pair = hvd.add_process_set([0, 2])
    outcome = error_of(hvd.allreduce, torch.ones(3), process_set=pair)
    hvd.remove_process_set(pair)
    assert_raised([error_of(hvd.allreduce, torch.ones(3), process_set=pair)], "TypeError", "registered")
    return outcome


SPLITS: dict[str, Any] = {
    "too few": [4],
    "too many": [1, 1, 1],
    "too large": [3, 2],
    "negative": [5, -1],
    "two dimensions": torch.ones(2, 1, dtype=torch.int32),
    "int64": torch.tensor([2, 2]),
    "float": torch.tensor([2.0, 2.0]),
    "list of floats": [2.0, 2.0],
    "array of two dimensions": np.ones((2, 1), np.int32),
    "a number": 4,
}


@on_worlds(2)
@pytest.mark.parametrize("name", ["alltoall", "alltoall_async"])
@pytest.mark.parametrize("kind", SPLITS)
def test_splits(world: Workers, name: str, kind: str) -> None:
    splits = SPLITS[kind]
    outcomes = world.run(lambda: error_of(getattr(hvd, name), torch.ones(4), splits=splits))
    assert_raised(outcomes, "ValueError", "splits")


@on_worlds(2)
def test_rows_that_cannot_be_split(world: Workers) -> None:
    assert_raised(world.run(lambda: error_of(hvd.alltoall, torch.ones(3))), "ValueError", "3")


@on_worlds(2)
@pytest.mark.parametrize("name", ["reducescatter", "reducescatter_async"])
def test_reducescatter_of_a_scalar(world: Workers, name: str) -> None:
    assert_raised(
        world.run(lambda: error_of(getattr(hvd, name), torch.tensor(1.0))), "ValueError", "reducescatter"
    )


@on_worlds(2)
@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product, hvd.Adasum])
def test_reducescatter_by_other_reductions(world: Workers, op: int) -> None:
    outcomes = world.run(lambda: error_of(hvd.reducescatter, torch.ones(4), op=op))
    assert_raised(outcomes, "HorovodInternalError", "Sum")


@on_worlds(1, 2)
@pytest.mark.parametrize("name", [name for name in CALLS if "allreduce" in name])
def test_average_and_op(world: Workers, name: str) -> None:
    outcomes = world.run(_average_and_op, name)
    assert_raised(outcomes, "ValueError", "only one")


def _average_and_op(name: str) -> Raised | None:
    given = [torch.ones(3)] if name.startswith("grouped") else torch.ones(3)
    return error_of(getattr(hvd, name), given, average=True, op=hvd.Sum)


@on_worlds(2)
@pytest.mark.parametrize(
    "name", ["allreduce_async", "allreduce_async_", "broadcast_async", "allgather_async"]
)
def test_name_in_flight(world: Workers, name: str) -> None:
    outcomes = world.run(_name_in_flight, name)
    assert_raised(outcomes[:1], "ValueError", f"'{name.split('_')[0]}.twice'", "in flight")


def _name_in_flight(name: str) -> Raised | None:
    options: dict[str, Any] = {"name": "twice", **({"root_rank": 0} if name.startswith("broadcast") else {})}
    outcome = None
    if hvd.rank() == 0:
        handle = getattr(hvd, name)(torch.ones(3), **options)
        outcome = error_of(getattr(hvd, name), torch.ones(3), **options)
    hvd.barrier()  # until here no other rank submits it, so that it is in flight for sure
    if hvd.rank() != 0:
        handle = getattr(hvd, name)(torch.ones(3), **options)
    assert hvd.synchronize(handle) is not None
    return outcome


@on_worlds(1, 2)
def test_handles(world: Workers) -> None:
    world.run(_handles)


def _handles() -> None:
    handle = hvd.allreduce_async(torch.ones(3))
    assert hvd.synchronize(handle).tolist() == [1.0] * 3
    assert hvd.synchronize(handle) is None
    assert_raised([error_of(hvd.poll, handle)], "ValueError", "handle")
    assert_raised([error_of(hvd.poll, 10**9)], "ValueError", "handle")
    assert hvd.synchronize(10**9) is None


@on_worlds(2)
def test_sparse_allreduce_of_dense_tensors(world: Workers) -> None:
    outcomes = world.run(lambda: error_of(hvd.sparse_allreduce_async, torch.ones(3), "dense", hvd.Sum))
    assert_raised(outcomes, "ValueError", "sparse")
    outcomes = world.run(lambda: error_of(hvd.sparse_allreduce_async, torch.eye(3).to_sparse(), "x", hvd.Min))
    assert_raised(outcomes, "ValueError", "hvd.Sum", "sparse_as_dense")


@every_call
def test_before_init(name: str) -> None:
    """In the test process itself, which never calls ``init()``."""
    assert not hvd.is_initialized()
    assert_raised([error_of(CALLS[name], torch.ones(4))], "HorovodInternalError", "hvd.init()")


OTHERS_BEFORE_INIT: dict[str, Callable[[], Any]] = {
    "broadcast_parameters": lambda: hvd.broadcast_parameters({"a": torch.ones(1)}, 0),
    "broadcast_object": lambda: hvd.broadcast_object(1),
    "allgather_object": lambda: hvd.allgather_object(1),
    "join": lambda: hvd.join(),
    "barrier": lambda: hvd.barrier(),
    "poll": lambda: hvd.poll(1),
    "synchronize": lambda: hvd.synchronize(1),
    "rank": lambda: hvd.rank(),
    "sparse": lambda: hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "x", hvd.Sum),
}


@pytest.mark.parametrize("name", OTHERS_BEFORE_INIT)
def test_others_before_init(name: str) -> None:
    assert_raised([error_of(OTHERS_BEFORE_INIT[name])], "HorovodInternalError", "hvd.init()")


def test_without_torch() -> None:
    """A process in which torch cannot be imported: the error says what to install."""
    program = "import sys; sys.modules['torch'] = None; import horovod.torch"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "ImportError: horovod.torch needs PyTorch; install it with: pip install torch" in ended.stderr
