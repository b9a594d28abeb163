"""init() and shutdown(): again and again, in worlds that change, with ranks that go early or never come."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import PLANES, Workers, rank_environment

StartWorkers = Callable[..., Workers]
every_plane = pytest.mark.parametrize("plane", PLANES)


def _resources() -> tuple[int, int, int]:
    """Descriptors, threads, and resident memory in KiB."""
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident


@every_plane
@pytest.mark.parametrize("size", [2, 3])
def test_init_and_shutdown_hundreds_of_times(start_workers: StartWorkers, size: int, plane: str) -> None:
    results = start_workers(size, plane).run(_many_generations, 300 if size == 2 else 60, deadline=100)
    for before, after in results:
        assert after[:2] == before[:2], "descriptors or threads are left over"
        assert after[2] - before[2] < 16 << 10, "memory grows"


def _many_generations(count: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    before = (0, 0, 0)
    for generation in range(count):
        hvd.init()
        assert hvd.is_initialized()
        result = hvd.allreduce(np.full(3000, generation + hvd.rank()), op=hvd.Sum)
        expected = generation * hvd.size() + sum(range(hvd.size()))
        assert np.all(result == expected), (generation, result)
        if generation % 7 == 0:
            hvd.allreduce(np.ones(3), name="small")
        hvd.shutdown()
        assert not hvd.is_initialized()
        if generation == 20:
            before = _resources()
    # A joined thread has run to its end, but the kernel may still list it for a moment.
    end = time.monotonic() + 10
    while (after := _resources())[1] > before[1] and time.monotonic() < end:
        time.sleep(0.01)
    return before, after


def test_operations_do_not_leak(start_workers: StartWorkers) -> None:
    results = start_workers(2).run(_many_operations)
    for before, after in results:
        assert after[0] == before[0]
        assert after[1] <= before[1] + 1, "the second thread of the completion pool may start late, no other"
        assert after[2] - before[2] < 8 << 10


def _many_operations() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    hvd.init()
    before = (0, 0, 0)
    for step in range(3000):
        hvd.allreduce(np.ones(300), name=f"fresh name {step}")  # each takes a place in the cache
        hvd.allreduce(np.ones(1000))
        hvd.synchronize(hvd.allreduce_async(np.ones(20), name="again", callback=lambda _: None))
        if step == 1500:
            before = _resources()
    after = _resources()
    hvd.shutdown()
    return before, after


@every_plane
def test_world_sizes_change(start_workers: StartWorkers, plane: str) -> None:
    """All four, then two of them as a world of their own, all again, each alone, all again."""
    jobs = [secrets.token_hex(8) for _ in range(3)]
    results = start_workers(4, plane).run(_changing_worlds, plane, jobs)
    assert results == [[4, 2, 4, 1, 4]] * 2 + [[4, 4, 1, 4]] * 2


def _changing_worlds(plane: str, jobs: list[str]) -> list[int]:
    me = int(os.environ["HOROVOD_RANK"])

    def world_of(rank: int, size: int, job: str) -> list[int]:
        os.environ.update(rank_environment(rank, size, plane, job))
        hvd.init()
        assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, rank, size)
        total = hvd.allreduce(np.ones(1000, "i8"), op=hvd.Sum)
        hvd.shutdown()
        return [int(total[0])]

    sums = world_of(me, 4, jobs[0])
    if me < 2:
        sums += world_of(1 - me, 2, jobs[1])  # also with other ranks
    sums += world_of(3 - me, 4, jobs[0])
    sums += world_of(0, 1, jobs[1])
    return sums + world_of(me, 4, jobs[2])


@pytest.mark.parametrize("size", [1, 2])
def test_init_is_idempotent(start_workers: StartWorkers, size: int) -> None:
    start_workers(size).run(_init_twice)


def _init_twice() -> None:
    hvd.init()
    hvd.allreduce(np.ones(3), name="x")
    before = _resources()[:2], hvd.counters()["submitted"]
    hvd.init()
    hvd.init()
    assert (_resources()[:2], hvd.counters()["submitted"]) == before
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()


def test_threads_that_call_init_at_once(start_workers: StartWorkers) -> None:
    start_workers(2).run(_init_from_threads)


def _init_from_threads() -> None:
    threads = [threading.Thread(target=hvd.init) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hvd.allreduce(np.ones(2), op=hvd.Sum)[0] == 2


@every_plane
@pytest.mark.parametrize("count", [3, 100_000], ids=["inline", "plane"])
@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_rank_leaves_early(start_workers: StartWorkers, leaver: int, count: int, plane: str) -> None:
    """The others get an error that names it, at once and again, and can start over."""
    outcomes = start_workers(3, plane).run(_leave_early, leaver, count)
    stayed = [outcome for rank, outcome in enumerate(outcomes) if rank != leaver]
    for number in range(3):
        assert_raised([errors[number] for errors in stayed], "PeerLostError", f"rank {leaver} ", "shut down")


def _leave_early(leaver: int, count: int) -> list[Raised | None]:
    hvd.init()
    hvd.allreduce(np.ones(count), name="together")
    outcomes: list[Raised | None] = []
    calls: list[BaseException | None] = []
    if hvd.rank() != leaver:
        pending = hvd.allreduce_async(np.ones(count), name="pending", callback=calls.append)
        outcomes.append(error_of(hvd.allreduce, np.ones(count), name="together"))
        outcomes.append(error_of(hvd.synchronize, pending))
        late = hvd.allreduce_async(np.ones(count), name="late", callback=calls.append)
        outcomes.append(error_of(hvd.synchronize, late))
        assert hvd.is_initialized()
    hvd.shutdown()
    hvd.init()
    assert np.all(hvd.allreduce(np.ones(count), name="together", op=hvd.Sum) == hvd.size())
    hvd.shutdown()
    assert len(calls) == (0 if not outcomes else 2), "a callback is called whatever becomes of the operation"
    assert all(type(call).__name__ == "PeerLostError" for call in calls)
    return outcomes


@every_plane
def test_what_was_done_before_a_shutdown_is_done_everywhere(start_workers: StartWorkers, plane: str) -> None:
    """A rank may go as soon as its own last operation is complete."""
    start_workers(3, plane).run(_last_operation)


def _last_operation() -> None:
    for generation in range(40):
        hvd.init()
        if hvd.rank() == generation % 3:
            time.sleep(0.002)
        count = [3, 3000, 200_000][generation // 3 % 3]
        assert np.all(hvd.allreduce(np.ones(count), op=hvd.Sum) == 3)
        hvd.shutdown()


def test_shutdown_with_operations_pending(start_workers: StartWorkers) -> None:
    outcomes = start_workers(2).run(_shutdown_while_pending)
    assert_raised([waiter for waiter, _ in outcomes], "HorovodInternalError")
    assert [calls for _, calls in outcomes] == [1, 1]


def _shutdown_while_pending() -> tuple[Raised | None, int]:
    hvd.init()
    calls: list[BaseException | None] = []
    name = f"only here {hvd.rank()}"
    hvd.allreduce_async(np.ones(3), name=name, callback=calls.append)
    outcomes: list[Raised | None] = []
    waiter = threading.Thread(
        target=lambda: outcomes.append(error_of(hvd.allreduce, np.ones(9), name=f"{name} too"))
    )
    waiter.start()
    time.sleep(0.05)
    hvd.shutdown()
    waiter.join()
    return outcomes[0], len(calls)


def test_shutdown_from_a_callback(start_workers: StartWorkers) -> None:
    """It runs on a thread of the pool that shutdown() ends: refused, and nothing breaks."""
    assert_raised(start_workers(2).run(_shutdown_in_callback), "RuntimeError", "callback")


def _shutdown_in_callback() -> Raised | None:
    hvd.init()
    outcomes: list[Raised | None] = []
    done = threading.Event()

    def leave(_: object) -> None:
        outcomes.append(error_of(hvd.shutdown))
        done.set()

    handle = hvd.allreduce_async(np.ones(3), name="last", callback=leave)
    assert done.wait(20)
    hvd.synchronize(handle)
    assert hvd.allreduce(np.ones(3), op=hvd.Sum)[0] == 2
    hvd.shutdown()
    return outcomes[0]
