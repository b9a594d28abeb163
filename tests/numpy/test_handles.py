"""Handles, callbacks and threads: operations that are under way while Python does something else."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support import worker
from tests.support.marks import on_worlds
from tests.support.outcomes import assert_raised, error_of
from tests.support.world import Workers

every_count = pytest.mark.parametrize("count", [5, 100_000], ids=["inline", "plane"])


@on_worlds(1, 2, 3)
@every_count
def test_poll_and_synchronize(world: Workers, count: int) -> None:
    world.run(_poll_and_synchronize, count)


def _poll_and_synchronize(count: int) -> None:
    hvd.barrier()
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(count), name="polled", op=hvd.Sum)
        if hvd.size() > 1:
            assert hvd.poll(handle) is False  # the others submit only after the barrier
    hvd.barrier()
    if handle is None:
        handle = hvd.allreduce_async(np.ones(count), name="polled", op=hvd.Sum)
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.poll(handle) is True
    assert np.all(hvd.synchronize(handle) == hvd.size())
    assert hvd.synchronize(handle) is None
    assert_raised([error_of(hvd.poll, handle)], "ValueError", "handle")


@on_worlds(1, 2)
@pytest.mark.parametrize("handle", [0, -1, 10**12])
def test_unknown_handles(world: Workers, handle: int) -> None:
    world.run(_unknown_handles, handle)


def _unknown_handles(handle: int) -> None:
    assert_raised([error_of(hvd.poll, handle)], "ValueError", "handle")
    assert hvd.synchronize(handle) is None


@on_worlds(2, 3)
@every_count
def test_nobody_waits_and_it_is_done_all_the_same(world: Workers, count: int) -> None:
    """The engine thread does what no caller drives."""
    world.run(_nobody_waits, count)


def _nobody_waits(count: int) -> None:
    tensor = np.ones(count)
    done = threading.Event()
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, callback=lambda _: done.set())
    assert done.wait(20)
    assert np.all(tensor == hvd.size())
    assert hvd.poll(handle)
    hvd.synchronize(handle)


@on_worlds(1, 2, 3)
@every_count
@pytest.mark.parametrize("operations", [1, 100])
def test_callbacks_come_exactly_once(world: Workers, count: int, operations: int) -> None:
    world.run(_callbacks_once, count, operations)


def _callbacks_once(count: int, operations: int) -> None:
    calls: list[tuple[int, object, int]] = []
    handles = [
        hvd.allreduce_async(
            np.full(count // operations, 1.0),
            name=f"callback.{i}",
            callback=lambda error, i=i: calls.append((i, error, threading.get_ident())),
        )
        for i in range(operations)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    _until(lambda: len(calls) >= operations)
    hvd.barrier()
    assert sorted(i for i, _, _ in calls) == list(range(operations))
    assert all(error is None for _, error, _ in calls)
    assert threading.get_ident() not in {thread for _, _, thread in calls}


def _until(condition: object) -> None:
    end = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.001)


@on_worlds(1, 2)
@every_count
def test_callback_that_raises(world: Workers, count: int) -> None:
    world.run(_callback_raises, count)


def _callback_raises(count: int) -> None:
    def fail(_: object) -> None:
        raise LookupError("on purpose")

    handles = [hvd.allreduce_async(np.ones(count), name=f"raises.{i}", callback=fail) for i in range(5)]
    for handle in handles:
        hvd.synchronize(handle)
    _until(lambda: len(worker.unraisable) >= 5)
    assert worker.take_unraisable() == ["LookupError: on purpose"] * 5
    assert np.all(hvd.allreduce(np.ones(count)) == 1)


@on_worlds(2)
def test_callback_gets_the_error(world: Workers) -> None:
    world.run(_callback_gets_error)


def _callback_gets_error() -> None:
    errors: list[object] = []
    tensor = np.ones(3 + hvd.rank())
    handle = hvd.allreduce_async(tensor, name="wrong", callback=errors.append)
    assert_raised([error_of(hvd.synchronize, handle)], "MismatchError", "shapes")
    _until(lambda: errors)
    assert type(errors[0]).__name__ == "MismatchError"
    assert len(errors) == 1


@on_worlds(1, 2)
def test_callback_may_submit(world: Workers) -> None:
    """A callback runs on a thread that holds nothing: it may use the engine."""
    world.run(_callback_submits)


def _callback_submits() -> None:
    results: list[np.ndarray] = []

    def go_on(_: object) -> None:
        results.append(hvd.allreduce(np.ones(3), name="second", op=hvd.Sum))

    hvd.synchronize(hvd.allreduce_async(np.ones(3), name="first", callback=go_on))
    _until(lambda: results)
    assert np.all(results[0] == hvd.size())


@on_worlds(1, 2)
def test_buffers_are_released(world: Workers) -> None:
    """Results and callbacks do not stay alive after the handle is synchronized, nor after a refusal."""
    world.run(_buffers_released)


class _Watched:
    def __call__(self, _: object) -> None:
        pass


def _buffers_released() -> None:
    tensor, callback, refused = np.ones(1000), _Watched(), _Watched()
    watched = [weakref.ref(tensor), weakref.ref(callback), weakref.ref(refused)]
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(tensor, name="released", callback=callback)
        if hvd.size() > 1:  # in flight for sure: the others wait at the barrier
            assert error_of(hvd.allreduce_async, tensor, name="released", callback=refused) is not None
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(tensor, name="released", callback=callback)
    hvd.synchronize(handle)
    del tensor, callback, refused
    _until(lambda: gc.collect() >= 0 and all(reference() is None for reference in watched))


@on_worlds(2, 3)
@every_count
@pytest.mark.parametrize("threads", [2, 5])
def test_threads(world: Workers, threads: int, count: int) -> None:
    """Several threads of each rank, each with its own names, in step with nobody."""
    results = world.run(_threads, threads, count)
    assert results == [[20 * len(results)] * threads] * len(results)


def _threads(threads: int, count: int) -> list[float]:
    totals = [0.0] * threads

    def work(number: int) -> None:
        for i in range(20):
            tensor = np.ones(count)
            name = f"thread.{number}.{i % 3}"
            if (i + number) % 2:
                result = hvd.allreduce(tensor, name=name, op=hvd.Sum)
            else:
                result = hvd.synchronize(hvd.allreduce_async_(tensor, name=name, op=hvd.Sum))
            assert np.all(result == result[0])
            totals[number] += result[0]

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return totals


@on_worlds(1, 2)
def test_two_threads_wait_for_one_handle(world: Workers) -> None:
    world.run(_two_waiters)


def _two_waiters() -> None:
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(0.05)
    handle = hvd.allreduce_async(np.ones(5), name="shared handle")
    results: list[object] = []
    waiters = [threading.Thread(target=lambda: results.append(hvd.synchronize(handle))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()
    assert sum(result is not None for result in results) == 1
    assert len(results) == 4
