"""Result memory is used again only when nobody can see it any more."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from horovod.numpy._outputs import LARGEST, SMALLEST, empty_like, pool

LIKE = np.zeros(SMALLEST // 4, dtype=np.float32)


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    gc.collect()
    pool.kept.clear()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_dropped_result_is_used_again() -> None:
    first = empty_like(LIKE)
    where = address(first)
    del first
    again = empty_like(LIKE)
    assert address(again) == where
    assert again.shape == LIKE.shape
    assert again.dtype == LIKE.dtype


def test_results_that_live_have_memory_of_their_own() -> None:
    results = [empty_like(LIKE) for _ in range(4)]
    assert len({address(result) for result in results}) == 4


@pytest.mark.parametrize(
    "keep",
    [
        lambda result: result[5:10],
        lambda result: result.reshape(2, -1),
        lambda result: result.view(np.int32)[::2],
        memoryview,
        lambda result: np.asarray(memoryview(result)),
        lambda result: result[100:].T.reshape(-1, 1)[3:],
    ],
)
def test_memory_that_a_view_shows_is_not_used_again(keep) -> None:  # type: ignore[no-untyped-def]
    result = empty_like(LIKE)
    where = address(result)
    result[:] = 7
    view = keep(result)
    del result
    gc.collect()
    others = [empty_like(LIKE) for _ in range(3)]
    for other in others:
        other[:] = 1
    assert where not in {address(other) for other in others}
    assert np.all(np.asarray(view).view(np.float32) == 7)


def test_what_is_kept_is_bounded() -> None:
    results = [empty_like(np.zeros(16 << 20, dtype=np.uint8)) for _ in range(8)]
    del results
    assert sum(kept.nbytes for kept in pool.kept) <= LARGEST


@pytest.mark.parametrize("nbytes", [0, 1, SMALLEST - 1, LARGEST + 1])
def test_small_and_huge_results_are_not_kept(nbytes: int) -> None:
    result = empty_like(np.zeros(nbytes, dtype=np.uint8))
    assert result.nbytes == nbytes
    del result
    assert pool.kept == []


def test_nothing_leaks_when_results_come_and_go() -> None:
    for _ in range(100):
        empty_like(LIKE)
    assert len(pool.kept) == 1
    assert len(pool.lent) == 0
