"""Tensors of more than 2 GiB: no count of elements or bytes is a 32-bit number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.frontends import frontend_of
from tests.conformance.marks import every_frontend
from tests.support.marks import on_worlds
from tests.support.world import Workers, WorldKey, Worlds

HUGE = (2 << 30) + 12_345
PLACES = (0, 1, 12_344, (1 << 30) + 7, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, HUGE - 1)
DEADLINE = 300.0

huge = pytest.mark.usefixtures("_ended_afterwards")


@pytest.fixture
def _ended_afterwards(worlds: Worlds, request: pytest.FixtureRequest) -> Any:
    """Ends the world, which keeps gigabytes."""
    yield
    key = request.node.callspec.params["world"]
    assert isinstance(key, WorldKey)
    worlds.get(key).kill()


def _filled(rank: int) -> np.ndarray:
    array = np.full(HUGE, rank + 1, np.uint8)
    array[list(PLACES)] = [10 * (rank + 1) + i for i in range(len(PLACES))]
    return array


def _samples(array: np.ndarray) -> tuple[str, int, list[int]]:
    return str(array.dtype), array.size, array[list(PLACES)].tolist() + array[5::500_000_007].tolist()


SAMPLES = len(range(5, HUGE, 500_000_007))


@pytest.mark.slow
@pytest.mark.timeout(2 * DEADLINE)
@every_frontend
@on_worlds(2)
@huge
def test_allreduce(world: Workers, frontend: str) -> None:
    wanted = [30 + 2 * i for i in range(len(PLACES))] + [3] * SAMPLES
    results = world.run(_allreduce, frontend, deadline=DEADLINE)
    assert results == [("uint8", HUGE, wanted)] * 2


def _allreduce(frontend: str) -> tuple[str, int, list[int]]:
    front = frontend_of(frontend)
    array = _filled(front.hvd.rank())
    return _samples(front.array(front.hvd.allreduce_(front.tensor(array), op=front.hvd.Sum)))


@pytest.mark.slow
@pytest.mark.timeout(2 * DEADLINE)
@every_frontend
@on_worlds(2)
@huge
def test_broadcast(world: Workers, frontend: str) -> None:
    wanted = [20 + i for i in range(len(PLACES))] + [2] * SAMPLES
    assert world.run(_broadcast, frontend, deadline=DEADLINE) == [("uint8", HUGE, wanted)] * 2


def _broadcast(frontend: str) -> tuple[str, int, list[int]]:
    front = frontend_of(frontend)
    array = _filled(front.hvd.rank())
    return _samples(front.array(front.hvd.broadcast_(front.tensor(array), 1)))


@pytest.mark.slow
@pytest.mark.timeout(2 * DEADLINE)
@every_frontend
@on_worlds(2)
@huge
def test_allgather(world: Workers, frontend: str) -> None:
    """Each rank has less, together they have more."""
    counts = [(1 << 28) + 11, (1 << 28) + 13]
    results = world.run(_allgather, frontend, counts, deadline=DEADLINE)
    wanted = ("float32", sum(counts), [1.0, 1.0, 2.0, 2.0])
    assert results == [wanted] * 2


def _allgather(frontend: str, counts: list[int]) -> tuple[str, int, list[float]]:
    front = frontend_of(frontend)
    array = np.full(counts[front.hvd.rank()], front.hvd.rank() + 1, np.float32)
    result = front.array(front.hvd.allgather(front.tensor(array)))
    places = [0, counts[0] - 1, counts[0], counts[0] + counts[1] - 1]
    return str(result.dtype), result.size, result[places].tolist()
