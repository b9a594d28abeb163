"""A rank dies or leaves: every survivor gets a ``PeerLostError`` that says who, where, and what for."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest
from jobs import Job, Rank, Start

VICTIMS = pytest.mark.parametrize("victim", [0, -1], ids=["coordinator", "last"])
SIZES = pytest.mark.parametrize("size", [2, 3, 4])

MID_ALLREDUCE = """
hvd.init()
tell_error(reduce_forever)
hvd.shutdown()
"""

NEGOTIATION = """
hvd.init()
hvd.allreduce(np.ones(3), name="warm")
flag(f"ready.{RANK}")
if RANK == int(os.environ["VICTIM"]) % SIZE:
    time.sleep(60)
tell_error(hvd.allreduce, np.ones(1 << 18), name="awaited")
tell_error(hvd.allreduce, np.ones(3), name="again")
hvd.shutdown()
"""

IDLE = """
hvd.init()
hvd.allreduce(np.ones(3), name="warm")
flag(f"ready.{RANK}")
if RANK == int(os.environ["VICTIM"]) % SIZE:
    time.sleep(60)
await_flag("next")
tell_error(hvd.allreduce, np.ones(3), name="next")
tell_error(hvd.barrier)
hvd.shutdown()
"""


def assert_named(survivor: Rank, victim: Rank, told: dict[str, Any], how: str = "died") -> None:
    """The error names the lost rank, its host and its process. Over sockets, their end may be seen first."""
    assert told["error"] == "PeerLostError", told
    assert told["internal"]
    who = f"rank {victim.number} (host testhost, pid {victim.pid}) "
    assert any(who + what in told["message"] for what in (how, "closed its connection")), survivor.number


def assert_all_named(job: Job, victim: int, how: str = "died") -> None:
    """Every survivor has been told, and ends well."""
    lost = job[victim]
    survivors = job.others(victim)
    for survivor in survivors:
        survivor.assert_quiet_exit()
    told = [(survivor, fact) for survivor in survivors for fact in survivor.told()]
    assert len(told) >= len(survivors)
    for survivor, fact in told:
        assert_named(survivor, lost, fact, how)


@SIZES
@VICTIMS
def test_sigkill_in_mid_allreduce(start: Start, plane: dict[str, str], size: int, victim: int) -> None:
    job = start(size, MID_ALLREDUCE, plane)
    job.await_flags(*(f"running.{rank}" for rank in range(size)))
    time.sleep(random.uniform(0, 0.05))
    job[victim].kill()
    assert job[victim].wait() == -signal.SIGKILL
    assert_all_named(job, victim)


@SIZES
@VICTIMS
def test_sigkill_in_negotiation(start: Start, size: int, victim: int) -> None:
    job = start(size, NEGOTIATION, {"VICTIM": str(victim)})
    job.await_flags(*(f"ready.{rank}" for rank in range(size)))
    time.sleep(random.uniform(0, 0.1))
    job[victim].kill()
    assert job[victim].wait() == -signal.SIGKILL
    assert_all_named(job, victim)
    assert all("'allreduce.awaited'" in rank.told()[0]["message"] for rank in job.others(victim))


@SIZES
@VICTIMS
def test_sigkill_while_idle(start: Start, plane: dict[str, str], size: int, victim: int) -> None:
    job = start(size, IDLE, {"VICTIM": str(victim), **plane})
    job.await_flags(*(f"ready.{rank}" for rank in range(size)))
    job[victim].kill()
    assert job[victim].wait() == -signal.SIGKILL
    job.flag("next")
    assert_all_named(job, victim)
    assert all(len(rank.told()) == 2 for rank in job.others(victim))


WAYS_TO_GO = """
def go(how):
    if how == "exit0": os._exit(0)
    if how == "exit3": os._exit(3)
    if how == "raise": raise ValueError("the cause")
    if how == "segfault":
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)
    if how == "leave": sys.exit(0)
    if how == "abort": os.abort()

hvd.init()
victim = int(os.environ["VICTIM"]) % SIZE
if RANK == victim:
    reduce_forever(limit=int(os.environ["STEPS"]))
    go(os.environ["HOW"])
tell_error(reduce_forever)
"""


@pytest.mark.parametrize("steps", [0, 5], ids=["at once", "after work"])
@VICTIMS
@pytest.mark.parametrize(
    ("how", "code", "seen"),
    [
        ("exit0", 0, "died"),
        ("exit3", 3, "died"),
        ("segfault", -signal.SIGSEGV, "died"),
        ("abort", -signal.SIGABRT, "died"),
        ("raise", 1, "has shut down"),  # Python ends the world properly on its way out
        ("leave", 0, "has shut down"),
    ],
)
def test_ways_to_go(start: Start, how: str, code: int, seen: str, victim: int, steps: int) -> None:
    job = start(3, WAYS_TO_GO, {"VICTIM": str(victim), "HOW": how, "STEPS": str(steps)})
    assert job[victim].wait() == code
    assert_all_named(job, victim, seen)


CHILDREN = """
hvd.init()
if RANK == int(os.environ["VICTIM"]) % SIZE:
    for number in range(2):
        if os.fork() == 0:
            flag(f"child.{number}")
            time.sleep(60)
            os._exit(0)
tell_error(reduce_forever)
"""


@pytest.mark.parametrize("size", [2, 3])
@VICTIMS
def test_death_of_a_rank_whose_children_live(
    start: Start, plane: dict[str, str], size: int, victim: int
) -> None:
    job = start(size, CHILDREN, {"VICTIM": str(victim), **plane})
    job.await_flags("child.0", "child.1", *(f"running.{rank}" for rank in range(size)))
    job[victim].kill()
    assert job[victim].wait() == -signal.SIGKILL
    assert_all_named(job, victim)
    assert len(job.processes()) == 2  # the children, and they alone


TWO_DIE = """
hvd.init()
tell_error(reduce_forever)
"""


def test_two_ranks_die_at_once(start: Start) -> None:
    job = start(4, TWO_DIE)
    job.await_flags(*(f"running.{rank}" for rank in range(4)))
    job[1].kill()
    job[2].kill()
    assert [job[1].wait(), job[2].wait()] == [-signal.SIGKILL] * 2
    job[0].assert_quiet_exit()
    job[3].assert_quiet_exit()
    messages = [job[rank].told()[0]["message"] for rank in (0, 3)]
    assert all(f"pid {job[1].pid}" in text or f"pid {job[2].pid}" in text for text in messages)


SMALLER = """
hvd.init()
tell_error(reduce_forever)
hvd.shutdown()
victim = int(os.environ["VICTIM"]) % SIZE
RANK, SIZE = RANK - (RANK > victim), SIZE - 1
for name, value in (("RANK", RANK), ("SIZE", SIZE), ("LOCAL_RANK", RANK), ("LOCAL_SIZE", SIZE)):
    os.environ["HOROVOD_" + name] = str(value)
hvd.init()
assert (hvd.rank(), hvd.size()) == (RANK, SIZE)
reduce_forever(limit=10)
tell(sum=float(hvd.allreduce(np.float32(RANK), op=hvd.Sum)))
"""


@SIZES
@VICTIMS
def test_survivors_form_a_smaller_world(start: Start, plane: dict[str, str], size: int, victim: int) -> None:
    job = start(size, SMALLER, {"VICTIM": str(victim), **plane})
    job.await_flags(*(f"running.{rank}" for rank in range(size)))
    job[victim].kill()
    for survivor in job.others(victim):
        survivor.assert_quiet_exit()
        lost, reborn = survivor.told()
        assert_named(survivor, job[victim], lost)
        assert reborn == {"sum": sum(range(size - 1))}


CALLBACKS = """
hvd.init()
seen = []
done = threading.Event()
def on_done(error):
    seen.append(type(error).__name__)
    if len(seen) == 3: done.set()
if RANK == 0:
    handles = [hvd.allreduce_async(np.ones(4), name=f"t{i}", callback=on_done) for i in range(3)]
    flag("ready")
    assert done.wait(30)
    tell(seen=seen)
    tell_error(hvd.synchronize, handles[0])
    assert hvd.poll(handles[1])
else:
    flag("up")
    time.sleep(60)
"""


def test_callbacks_and_handles_hear_of_a_death(start: Start) -> None:
    job = start(2, CALLBACKS)
    job.await_flags("ready", "up")
    job[1].kill()
    job[0].assert_quiet_exit()
    seen, error = job[0].told()
    assert seen == {"seen": ["PeerLostError"] * 3}
    assert_named(job[0], job[1], error)


STOPPED = """
hvd.init()
reduce_forever(limit=int(os.environ["STEPS"]))
tell(done=True)
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_not_dead(start: Start, victim: int) -> None:
    job = start(2, STOPPED, {"STEPS": "100"})
    job.await_flags("running.0", "running.1")
    job[victim].kill(signal.SIGSTOP)
    time.sleep(1.5)
    assert [rank.process.poll() for rank in job.ranks] == [None, None]
    job[victim].kill(signal.SIGCONT)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert rank.told() == [{"done": True}]


DURING_INIT = """
if RANK == int(os.environ.get("ABSENT", -1)):
    time.sleep(60)
if RANK == int(os.environ["VICTIM"]):
    if RANK == 1:
        from horovod.rendezvous.messages import Channel
        send = Channel.send
        def send_and_die(*args):
            send(*args)
            os._exit(3)
        Channel.send = send_and_die
        hvd.init()
    os._exit(3)
tell_error(hvd.init)
"""


def test_a_rank_that_ends_during_init_is_named(start: Start) -> None:
    job = start(3, DURING_INIT, {"VICTIM": "1", "ABSENT": "2", "HOROVOD_START_TIMEOUT": "30"})
    assert job[1].wait() == 3
    job[0].assert_quiet_exit()
    (told,) = job[0].told()
    assert told["error"] == "InitError"
    assert f"Rank 1 (host testhost, pid {job[1].pid}) ended during init()" in told["message"]


def test_a_rank_that_never_comes_is_named(start: Start) -> None:
    job = start(3, DURING_INIT, {"VICTIM": "2", "HOROVOD_START_TIMEOUT": "5"})
    assert job[2].wait() == 3
    for rank in job.others(2):
        rank.assert_quiet_exit()
        (told,) = rank.told()
        assert told["error"] == "InitError"
        assert "for rank(s) 2 of 3" in told["message"]


OTHER_SET = """
pair = hvd.ProcessSet([0, 2])
hvd.init(process_sets=[pair])
hvd.barrier()
if RANK == 1:
    hvd.shutdown()
    flag("gone")
else:
    await_flag("gone")
    for step in range(3):
        if RANK == 2:
            time.sleep(0.2)
        for count in (3, 1 << 18):
            result = hvd.allreduce(np.full(count, RANK + 1.0), op=hvd.Sum, name=f"{count}", process_set=pair)
            assert np.all(result == 4.0)
    tell(done=True)
    tell_error(hvd.allreduce, np.ones(3), name="all")
"""


def test_a_rank_that_nobody_needs_may_go(start: Start, plane: dict[str, str]) -> None:
    """The others go on in a process set without it, until they call for it."""
    job = start(3, OTHER_SET, plane)
    assert job[1].wait() == 0
    for survivor in job.others(1):
        survivor.assert_quiet_exit()
        done, lost = survivor.told()
        assert done == {"done": True}
        assert_named(survivor, job[1], lost, "has shut down")
