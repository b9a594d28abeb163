"""Python objects: from one rank to all, and from all to all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.frontends import frontend_of
from tests.conformance.marks import DYNAMIC, every_frontend, every_world, on_worlds
from tests.conformance.table import process_sets
from tests.support.world import Workers


def _object(rank: int, kind: str) -> Any:
    return {
        "nothing": None,
        "number": rank,
        "text": "ж" * rank,
        "nested": {"rank": rank, "list": [1, (2.5, None)], "bytes": b"\0" * rank},
        "large": bytes(range(256)) * 1000 * (rank + 1),
        "array": np.arange(rank + 3).tolist(),
    }[kind]


every_kind = pytest.mark.parametrize("kind", ["nothing", "number", "text", "nested", "large", "array"])


@every_frontend
@every_world
@every_kind
def test_broadcast_object(world: Workers, frontend: str, kind: str) -> None:
    size = len(world.pids)
    results = world.run(_broadcast_objects, frontend, kind)
    assert results == [[_object(root, kind) for root in range(size)]] * size


def _broadcast_objects(frontend: str, kind: str) -> list[Any]:
    hvd = frontend_of(frontend).hvd
    mine = _object(hvd.rank(), kind)
    first = [hvd.broadcast_object(mine)]
    return first + [hvd.broadcast_object(mine, root, name=f"from {root}") for root in range(1, hvd.size())]


@every_frontend
@on_worlds(2, 3)
@pytest.mark.parametrize("root", [0, 1])
def test_only_the_roots_object_matters(world: Workers, frontend: str, root: int) -> None:
    """The others have nothing, as in most scripts, or something of another type."""
    assert world.run(_only_the_root, frontend, root, deadline=10.0) == [[{"a": 1}] * 2] * len(world.pids)


def _only_the_root(frontend: str, root: int) -> list[Any]:
    hvd = frontend_of(frontend).hvd
    at_root = hvd.rank() == root
    return [hvd.broadcast_object({"a": 1} if at_root else other, root) for other in (None, [3])]


@every_frontend
@every_world
@every_kind
def test_allgather_object(world: Workers, frontend: str, kind: str) -> None:
    size = len(world.pids)
    results = world.run(_allgather_objects, frontend, kind)
    assert results == [[[_object(rank, kind) for rank in range(size)]] * 2] * size


def _allgather_objects(frontend: str, kind: str) -> list[list[Any]]:
    hvd = frontend_of(frontend).hvd
    mine = _object(hvd.rank(), kind)
    return [list(hvd.allgather_object(mine)), list(hvd.allgather_object(mine, name="named"))]


@every_frontend
@on_worlds(3, **DYNAMIC)
def test_in_a_process_set(world: Workers, frontend: str) -> None:
    results = world.run(_objects_of_set, frontend)
    assert results == [([{"rank": 2}], [0, 2]), None, ([{"rank": 2}], [0, 2])]


def _objects_of_set(frontend: str) -> tuple[list[Any], list[int]] | None:
    hvd = frontend_of(frontend).hvd
    with process_sets(frontend, [(0, 2)]) as sets:
        if hvd.rank() == 1:
            return None
        sent = hvd.broadcast_object({"rank": hvd.rank()}, 2, process_set=sets[0, 2])
        return [sent], list(hvd.allgather_object(hvd.rank(), process_set=sets[0, 2]))
