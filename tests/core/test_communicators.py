"""Worlds of a part of the ranks: ``init(comm=...)``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod._core.communicators import place_in
from horovod._identity import Identity
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

StartWorkers = Callable[..., Workers]


class Comm:
    """What mpi4py's communicators offer, without MPI."""

    def __init__(self, rank: int, members: list[tuple[str, str]]) -> None:
        self._rank, self._members = rank, members

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return len(self._members)

    def allgather(self, _own: Any) -> list[tuple[str, str]]:
        return self._members


def _who(rank: int = 0, size: int = 4, host: str = "a") -> Identity:
    return Identity(rank, size, rank, size, 0, 1, host, "mpirun", "job")


@pytest.mark.parametrize("comm", [None, [], [0, 1, 2, 3], (3, 2, 1, 0)])
def test_all_ranks(comm: Any) -> None:
    assert place_in(comm, _who(2)) == _who(2)


def test_some_ranks() -> None:
    places = [place_in([3, 1], _who(rank)) for rank in (1, 3)]
    assert [(place.rank, place.size, place.local_rank, place.local_size) for place in places] == [
        (0, 2, 0, 2),
        (1, 2, 1, 2),
    ]
    assert places[0].job_id == places[1].job_id != "job"
    assert place_in([0, 2], _who(0)).job_id != places[0].job_id


@pytest.mark.parametrize(
    ("comm", "text"), [([1, 2], "rank 0, which is not in it"), ([0, 0], "different"), ([0, 9], "from 0 to 3")]
)
def test_wrong_ranks(comm: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        place_in(comm, _who(0))


def test_a_communicator_counts_by_itself() -> None:
    """Other ranks, another order, other hosts than the launcher's numbers say."""
    members = [("id-of-0", "b"), ("x", "a"), ("y", "a"), ("z", "b"), ("w", "a")]
    place = place_in(Comm(2, members), _who(0, 8, "a"))
    assert (place.rank, place.size, place.job_id) == (2, 5, "id-of-0")
    assert (place.local_rank, place.local_size, place.cross_rank, place.cross_size) == (1, 3, 1, 2)
    last = place_in(Comm(4, members), _who(0, 8, "a"))
    assert (last.local_rank, last.cross_rank, last.cross_size) == (2, 0, 1)


def test_two_worlds_beside_each_other(start_workers: StartWorkers) -> None:
    """And one of all ranks after them."""
    results = start_workers(4).run(_halves)
    assert results == [(0, 2, 2.0, 6.0), (0, 2, 4.0, 6.0), (1, 2, 2.0, 6.0), (1, 2, 4.0, 6.0)]


def _halves() -> tuple[int, int, float, float]:
    mine = int(os.environ["HOROVOD_RANK"])
    hvd.init(comm=[mine % 2, mine % 2 + 2])
    half = hvd.rank(), hvd.size(), float(hvd.allreduce(np.array([float(mine)]), op=hvd.Sum)[0])
    hvd.shutdown()
    hvd.init()
    return *half, float(hvd.allreduce(np.array([float(mine)]), op=hvd.Sum)[0])


def test_a_rank_that_is_not_meant(start_workers: StartWorkers) -> None:
    outcomes = start_workers(3).run(_only_two)
    assert_raised(outcomes[2:], "ValueError", "not in it")
    assert outcomes[:2] == [None, None]


def _only_two() -> Raised | None:
    return error_of(hvd.init, comm=[0, 1])
