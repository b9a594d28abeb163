"""Ranks that end, fail or fork while torch.distributed moves their tensors: an error, never a hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jobs import Job, Start

PLANE = {"HOROVOD_CPU_OPERATIONS": "torch"}
SIZE = 3

TORCH = """
import torch
import horovod.torch as hvt
torch.set_num_threads(1)

def reduce_on(count=1 << 18, limit=1e9):
    step = 0
    while step < limit:
        result = hvt.allreduce(torch.full((count,), float(RANK + step)), op=hvt.Sum, name=f"big.{step % 3}")
        assert result.eq(SIZE * step + SIZE * (SIZE - 1) // 2).all(), (step, result)
        step += 1
        if step == 3: flag(f"running.{RANK}")
"""


def launch(start: Start, tmp_path: Path, code: str, size: int = SIZE, **env: str) -> Job:
    """Starts a job whose temporary files are the test's."""
    (tmp_path / "tmp").mkdir()
    return start(size, TORCH + code, {**PLANE, "TMPDIR": str(tmp_path / "tmp"), **env})


def assert_nothing_left(tmp_path: Path) -> None:
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize("victim", [0, 2])
def test_a_peer_dies(start: Start, tmp_path: Path, victim: int) -> None:
    job = launch(start, tmp_path, "hvt.init()\ntell_error(reduce_on)\ntell_error(reduce_on)")
    job.await_flags(*(f"running.{rank}" for rank in range(SIZE)))
    job[victim].kill()
    for survivor in job.others(victim):
        survivor.assert_quiet_exit()
        for told in survivor.told():
            assert told["internal"]
            assert f"rank {victim} (host testhost, pid {job[victim].pid}) died" in told["message"]
    assert_nothing_left(tmp_path)


BEFORE_THE_FIRST = """
hvt.init()
hvt.barrier()
flag(f"running.{RANK}")
if RANK == 1: time.sleep(60)
tell_error(reduce_on)
"""


def test_a_peer_dies_before_the_group_is_made(start: Start, tmp_path: Path) -> None:
    job = launch(start, tmp_path, BEFORE_THE_FIRST)
    job.await_flags(*(f"running.{rank}" for rank in range(SIZE)))
    job[1].kill()
    for survivor in job.others(1):
        survivor.assert_quiet_exit()
        assert f"rank 1 (host testhost, pid {job[1].pid}) died" in survivor.told()[0]["message"]


STOPPED_IN_THE_GROUP = """
from horovod.torch import _groups
hvt.init()
hvt.barrier()
if RANK == 1:
    def stop(path):
        flag("making")
        time.sleep(60)
    _groups.make_directory = stop
tell_error(reduce_on)
"""


def test_a_peer_dies_while_the_group_is_made(start: Start, tmp_path: Path) -> None:
    job = launch(start, tmp_path, STOPPED_IN_THE_GROUP)
    job.await_flags("making")
    job[1].kill()
    for survivor in job.others(1):
        survivor.assert_quiet_exit()
        assert f"rank 1 (host testhost, pid {job[1].pid}) died" in survivor.told()[0]["message"]
    assert_nothing_left(tmp_path)


LEAVES = """
hvt.init()
reduce_on(limit=5)
if RANK == 1:
    hvt.shutdown()
else:
    tell_error(reduce_on)
"""


def test_a_peer_leaves(start: Start, tmp_path: Path) -> None:
    job = launch(start, tmp_path, LEAVES)
    for rank in job.ranks:
        rank.assert_quiet_exit()
    for survivor in job.others(1):
        assert f"rank 1 (host testhost, pid {job[1].pid}) has shut down" in survivor.told()[0]["message"]
    assert_nothing_left(tmp_path)


IN_TURN = """
for generation in range(18):
    hvt.init()
    reduce_on(limit=2)
    hvt.barrier()
    leaver = generation % SIZE
    if RANK != leaver or generation % 2:
        handles = [hvt.allreduce_async(torch.ones(1 << i), name=f"t{i}") for i in range(16)]
    if RANK != leaver:
        tell_error(lambda: [*map(hvt.synchronize, handles), hvt.barrier()])
    hvt.shutdown()
    assert threading.active_count() == 1, threading.enumerate()
"""


def test_ranks_leave_in_turn_while_others_wait_for_them(start: Start, tmp_path: Path) -> None:
    """With works in all states: not submitted, agreed on, taken, under way."""
    job = launch(start, tmp_path, IN_TURN)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        leavers = [leaver for leaver in (g % SIZE for g in range(18)) if leaver != rank.number]
        for told, leaver in zip(rank.told(), leavers, strict=True):
            assert f"rank {leaver} (host testhost, pid {job[leaver].pid}) has shut down" in told["message"]
    assert_nothing_left(tmp_path)


FAILING = """
from horovod.torch import _carrying
hvt.init()
reduce_on(limit=3)
if RANK == 2:
    def fail(*_): raise MemoryError("no room for the shares")
    _carrying._KINDS["allreduce"] = fail
tell_error(reduce_on)
tell_error(hvt.allgather, torch.ones(3))
hvt.shutdown()
os.environ["HOROVOD_JOB_ID"] += "again"
if RANK == 2: _carrying._KINDS["allreduce"] = _carrying._allreduce
hvt.init()
reduce_on(limit=3)
"""


def test_an_executor_fails(start: Start, tmp_path: Path) -> None:
    """The error ends the world on every rank; the next world works."""
    job = launch(start, tmp_path, FAILING)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        for told in rank.told():
            assert told["error"] == "HorovodInternalError"
            assert f"rank 2 (host testhost, pid {job[2].pid}) could not carry out" in told["message"]
            assert "MemoryError: no room for the shares" in told["message"]
    assert_nothing_left(tmp_path)


AGAIN = """
def descriptors(): return len(os.listdir("/proc/self/fd"))
for generation in range(8):
    hvt.init()
    reduce_on(limit=3)
    before = [threading.active_count(), descriptors()]
    hvt.shutdown()
    assert threading.active_count() == 1, threading.enumerate()
    tell(before=before, after=descriptors())
"""


def test_worlds_one_after_the_other(start: Start, tmp_path: Path) -> None:
    """Each has an executor and connections of its own; nothing is left of the last one."""
    job = launch(start, tmp_path, AGAIN)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        told = rank.told()
        assert [facts["before"][0] for facts in told] == [2] * 8
        assert {facts["after"] for facts in told[1:]} == {told[1]["after"]}
    assert_nothing_left(tmp_path)


PENDING = """
hvt.init()
reduce_on(limit=3)
handles = [hvt.allreduce_async(torch.ones(1 << i), name=f"pending.{i}") for i in range(20)]
if os.environ["WHO"] not in ("all", str(RANK)):
    tell_error(lambda: [hvt.synchronize(handle) for handle in handles])
    tell_error(hvt.barrier)
"""


@pytest.mark.parametrize("who", ["all", "0"])
def test_the_interpreter_ends_with_operations_pending(start: Start, tmp_path: Path, who: str) -> None:
    job = launch(start, tmp_path, PENDING, WHO=who)
    for rank in job.ranks:
        rank.assert_quiet_exit()
    for survivor in [] if who == "all" else job.others(int(who)):
        _, barrier = survivor.told()  # the operations may have come to their end in time
        assert f"rank {who} (host testhost, pid {job[int(who)].pid})" in barrier["message"]
    assert_nothing_left(tmp_path)


FORKING = """
hvt.init()
reduce_on(limit=3)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, i): return torch.tensor(i)
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(Data(), 1, False, num_workers=2, multiprocessing_context="fork"):
        hvt.allreduce(batch.float())
pid = os.fork()
if pid == 0:
    tell_error(hvt.allreduce, torch.ones(3))
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
reduce_on(limit=3)
"""


def test_children(start: Start, tmp_path: Path) -> None:
    """Forked children, and workers of a DataLoader, leave the plane alone."""
    job = launch(start, tmp_path, FORKING, 2)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert [told["error"] for told in rank.told()] == ["NotInitializedError"]


ORPHAN = """
hvt.init()
reduce_on(limit=3)
if RANK == 1 and os.fork() == 0:
    time.sleep(60)
flag(f"ready.{RANK}")
tell_error(reduce_on)
"""


def test_a_child_outlives_its_rank(start: Start, tmp_path: Path) -> None:
    """It keeps the connections open; the others learn of the death all the same."""
    job = launch(start, tmp_path, ORPHAN)
    job.await_flags(*(f"ready.{rank}" for rank in range(SIZE)))
    job[1].kill()
    for survivor in job.others(1):
        survivor.assert_quiet_exit()
        assert f"rank 1 (host testhost, pid {job[1].pid}) died" in survivor.told()[0]["message"]
