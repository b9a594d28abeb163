"""init(): alone, with ranks that are missing or do not belong, and the errors that say so."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable

import pytest

import horovod.numpy as hvd
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import PLANES, Workers, clean_environment, rank_environment

StartWorkers = Callable[..., Workers]

ALONE = """
import os
import numpy as np
import horovod.numpy as hvd

threads = len(os.listdir("/proc/self/task"))
hvd.init()
assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
given = np.array([0.1, -0.0, np.nan, 1e-320])
results = [
    hvd.allreduce(given),
    hvd.allreduce(given, op=hvd.Sum),
    hvd.allreduce_(given.copy(), name="x"),
    hvd.synchronize(hvd.allreduce_async(given)),
    hvd.synchronize(hvd.allreduce_async_(given.copy(), name="x")),
    hvd.broadcast(given, 0),
    hvd.broadcast_(given.copy(), root_rank=0),
    hvd.synchronize(hvd.broadcast_async(given, 0)),
    hvd.synchronize(hvd.broadcast_async_(given.copy(), 0, name="y")),
]
assert {result.tobytes() for result in results} == {given.tobytes()}
assert hvd.allreduce(np.float64(3.0), prescale_factor=0.5, postscale_factor=4.0) == 6.0
hvd.barrier()
handle = hvd.allreduce_async(given)
assert hvd.poll(handle) is True
assert len(os.listdir("/proc/self/task")) == threads, "a thread was started"
hvd.shutdown()
hvd.init()
assert hvd.size() == 1
print("fine")
"""


def test_a_world_of_one_needs_no_launcher_and_no_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def _error_of_init(absent: list[int]) -> Raised | None:
    me = int(os.environ["HOROVOD_RANK"])
    return None if me in absent else error_of(hvd.init)


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("absent", [[1], [2], [1, 3]], ids=str)
def test_missing_ranks_are_named(start_workers: StartWorkers, absent: list[int], plane: str) -> None:
    world = start_workers(4, plane, {"HOROVOD_START_TIMEOUT": "4"})
    outcomes = world.run(_error_of_init, absent)
    assert_raised(
        outcomes[:1], "InitError", f"rank(s) {', '.join(map(str, absent))} of 4", "HOROVOD_START_TIMEOUT"
    )
    present = [outcome for rank, outcome in enumerate(outcomes) if rank not in absent]
    assert_raised(present, "ValueError", "HOROVOD_START_TIMEOUT")


def test_missing_rank_0_is_named(start_workers: StartWorkers) -> None:
    outcomes = start_workers(3, settings={"HOROVOD_START_TIMEOUT": "1"}).run(_error_of_init, [0])
    assert_raised(outcomes[1:], "InitError", "rank 0", "1 s")


def test_init_works_after_it_failed(start_workers: StartWorkers) -> None:
    world = start_workers(2, settings={"HOROVOD_START_TIMEOUT": "0.5"})
    fds_before = world.run(lambda: len(os.listdir("/proc/self/fd")))
    outcomes = world.run(_fail_then_succeed)
    assert_raised(outcomes, "InitError")
    world.run(hvd.shutdown)
    assert world.run(lambda: len(os.listdir("/proc/self/fd"))) == fds_before


def _fail_then_succeed() -> Raised | None:
    job = os.environ["HOROVOD_JOB_ID"]
    os.environ["HOROVOD_JOB_ID"] = f"{job}-{os.getpid()}"  # each waits at a place of its own
    outcome = error_of(hvd.init)
    assert not hvd.is_initialized()
    os.environ.update({"HOROVOD_JOB_ID": job, "HOROVOD_START_TIMEOUT": "30"})
    hvd.init()
    hvd.barrier()
    return outcome


def a_job(name: str) -> str:
    return f"{name} {secrets.token_hex(8)}"  # other runs of this test may be under way


def _claim(ranks: list[int], sizes: list[int], plane: str, job: str) -> Raised | None:
    me = int(os.environ["HOROVOD_RANK"])
    os.environ.update(rank_environment(ranks[me], sizes[me], plane, job))
    return error_of(hvd.init)


def test_a_rank_that_is_taken(start_workers: StartWorkers) -> None:
    world = start_workers(4, settings={"HOROVOD_START_TIMEOUT": "6"})
    outcomes = world.run(_claim, [0, 1, 1, 1], [3] * 4, "shm", a_job("claimed twice"))
    refused = [
        outcome for outcome in outcomes[1:] if outcome and "rank 1 of this job already" in outcome.message
    ]
    assert len(refused) == 2, outcomes
    assert_raised(refused, "InitError", "Do not start two processes")


def test_rank_0_is_taken(start_workers: StartWorkers) -> None:
    world = start_workers(2, settings={"HOROVOD_START_TIMEOUT": "5"})
    outcomes = world.run(_claim, [0, 0], [2, 2], "shm", a_job("two rank 0"))
    refused = [outcome for outcome in outcomes if outcome and "rank 0 of this job already" in outcome.message]
    assert len(refused) == 1, outcomes
    assert_raised(outcomes, "InitError")


def test_the_job_comes_up_although_a_rank_is_claimed_twice(start_workers: StartWorkers) -> None:
    outcomes = start_workers(4).run(_claim, [0, 1, 1, 2], [3] * 4, "shm", a_job("claimed and complete"))
    lost = [outcome for outcome in outcomes if outcome is not None]
    assert len(lost) == 1, outcomes
    assert outcomes[0] is None
    assert outcomes[3] is None
    assert_raised(lost, "InitError")


def test_sizes_that_disagree(start_workers: StartWorkers) -> None:
    world = start_workers(2, settings={"HOROVOD_START_TIMEOUT": "5"})
    outcomes = world.run(_claim, [0, 1], [2, 3], "shm", a_job("sizes"))
    assert_raised(outcomes[1:], "InitError", "Rank 1 was told of 3 ranks, rank 0 of 2")
    assert_raised(outcomes[:1], "InitError", "rank(s) 1 of 2")


def test_planes_that_disagree(start_workers: StartWorkers) -> None:
    world = start_workers(2, settings={"HOROVOD_START_TIMEOUT": "5"})
    outcomes = world.run(_claim_with_other_planes)
    assert_raised(outcomes[1:], "InitError", "HOROVOD_CPU_OPERATIONS")


def _claim_with_other_planes() -> Raised | None:
    os.environ["HOROVOD_CPU_OPERATIONS"] = ["shm", "auto"][int(os.environ["HOROVOD_RANK"])]
    return error_of(hvd.init)


@pytest.mark.parametrize("ender", [1, 2])
def test_a_rank_that_dies_during_init(start_workers: StartWorkers, ender: int) -> None:
    """The waiting ranks hear of it long before the deadline."""
    world = start_workers(4, settings={"HOROVOD_START_TIMEOUT": "1000"})
    outcomes = world.run(_die_in_init, ender)
    waiting = [outcome for rank, outcome in enumerate(outcomes) if rank not in (3, ender)]
    assert_raised(waiting, "InitError", f"Rank {ender} ", "ended during init()")


COME_AND_GO = """
import os
from horovod.rendezvous import guest
import horovod.numpy as hvd
guest.Guest._take_roster = lambda self: os._exit(1)  # it has greeted rank 0
hvd.init()
"""


def _die_in_init(ender: int) -> Raised | None:
    me = int(os.environ["HOROVOD_RANK"])
    if me == 3:
        return None  # never comes
    if me == ender:
        subprocess.run([sys.executable, "-c", COME_AND_GO], timeout=60, check=False)
        return None
    return error_of(hvd.init)
