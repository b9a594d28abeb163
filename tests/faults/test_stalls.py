"""A rank that lives but does not come: every rank that waits says who is missing and where it stands, and the
job ends if it was told to."""

from __future__ import annotations

import re
import signal

import pytest
from jobs import Job, Start, until

from horovod._config import Settings

WARN_ONLY = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.4"}
WITH_END = {**WARN_ONLY, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1.2"}
VICTIMS = pytest.mark.parametrize("victim", [0, -1], ids=["coordinator", "last"])

# What keeps the victim: the test's line and the words that a report must show.
ENDLESS_LOOP = "while True: pass  # the loop"
ASLEEP = "time.sleep(1000)  # the sleep"
BLOCKED = "next(iter(queue.Queue().get, None))  # the loader"

STUCK = """
import queue

def load_batch():
    {line}

hvd.init()
for i in range(3):
    hvd.allreduce(np.ones(4), name=f"grad.{{i}}")
flag(f"ready.{{RANK}}")
if RANK == int(os.environ["VICTIM"]) % SIZE:
    load_batch()
tell_error(hvd.allreduce, np.ones(4), name="grad.3")
hvd.shutdown()
"""


def line_of(job: Job, mark: str) -> str:
    """``file:line`` of the place with this mark in the job's script."""
    script = job.directory / "worker.py"
    number = next(n for n, text in enumerate(script.read_text().splitlines(), 1) if mark in text)
    return f"{script}:{number} in load_batch"


def who(job: Job, rank: int) -> str:
    """A rank as messages name it."""
    number = rank % len(job.ranks)
    return f"rank {number} (host testhost, pid {job[number].pid})"


@pytest.mark.parametrize("line", [ENDLESS_LOOP, ASLEEP, BLOCKED], ids=["loop", "sleep", "loader"])
@VICTIMS
def test_a_rank_that_stands_still_is_shown_with_its_line(start: Start, victim: int, line: str) -> None:
    job = start(3, STUCK.format(line=line), {**WITH_END, "VICTIM": str(victim)})
    for survivor in job.others(victim):
        assert survivor.wait() == 0, survivor.err()
        [told] = survivor.told()
        assert told["error"] == "PeerLostError"
        assert f"{who(job, victim)} has not submitted 'allreduce.grad.3'" in told["message"]
        assert f"is at {line_of(job, line)}" in told["message"]
        # It was said before, too, at the first limit, on every rank that waits.
        assert f"{who(job, victim)} has not submitted 'allreduce.grad.3'" in survivor.err()
        assert line_of(job, line) in survivor.err()
    assert "the latest first: 'allreduce.grad.2', 'allreduce.grad.1', 'allreduce.grad.0'" in job[0].err()


@VICTIMS
@pytest.mark.parametrize("moving", [False, True], ids=["before", "during"])
def test_a_stopped_rank(start: Start, plane: dict[str, str], victim: int, moving: bool) -> None:
    code = STUCK.format(line="time.sleep(1000)") if not moving else "hvd.init()\ntell_error(reduce_forever)\n"
    job = start(3, code, {**plane, **WITH_END, "VICTIM": str(victim)})
    job.await_flags(*(f"{'running' if moving else 'ready'}.{rank}" for rank in range(3)))
    job[victim].kill(signal.SIGSTOP)
    for survivor in job.others(victim):
        assert survivor.wait() == 0, survivor.err()
        [told] = survivor.told()
        assert told["error"] == "PeerLostError"
        assert who(job, victim) in told["message"], told
        assert "is stopped" in told["message"], told
        assert f"kill -CONT {job[victim].pid}" in told["message"], told


def test_a_stopped_rank_goes_on_after_a_warning(start: Start, plane: dict[str, str]) -> None:
    job = start(
        2,
        """
hvd.init()
flag(f"ready.{RANK}")
if RANK == 1:
    await_flag("go")
tell(result=hvd.allreduce(np.full(3, RANK + 1.0), op=hvd.Sum, name="late").tolist())
""",
        {**plane, **WARN_ONLY},
    )
    job.await_flags("ready.0", "ready.1")
    job[1].kill(signal.SIGSTOP)
    until(lambda: "is stopped" in job[0].err(), "the warning")
    assert f"{who(job, 1)} has not submitted 'allreduce.late'" in job[0].err()
    job.flag("go")
    job[1].kill(signal.SIGCONT)
    for rank in job.ranks:
        assert rank.wait() == 0
        assert rank.told() == [{"result": [3.0, 3.0, 3.0]}]


def test_ranks_that_wait_for_different_tensors(start: Start, plane: dict[str, str]) -> None:
    """Both sides are shown: what each waits for, and what it did last."""
    job = start(
        2,
        """
hvd.init()
for i in range(3):
    hvd.allreduce(np.ones(4), name=f"same.{i}")
tell_error(hvd.allreduce, np.ones(4), name=f"only.{RANK}")
""",
        {**plane, **WITH_END},
    )
    for rank in job.ranks:
        assert rank.wait() == 0
        [told] = rank.told()
        assert told["error"] == "PeerLostError"
        for side in (0, 1):
            assert f"{who(job, side)} has not submitted 'allreduce.only.{1 - side}'" in told["message"]
    report = job[0].err()
    for side in (0, 1):
        account = re.search(rf"  rank {side} .* is at (?s:.*?)has completed.*\n", report)
        assert account is not None, report
        assert f"waits for 'allreduce.only.{side}'" in account[0]
        assert "the latest first: 'allreduce.same.2', 'allreduce.same.1', 'allreduce.same.0'" in account[0]


def test_ranks_that_submit_different_tensors_for_ever(start: Start) -> None:
    """Nobody waits in a call: the report comes all the same."""
    job = start(
        2,
        """
hvd.init()
handles = []
while not raised("enough"):
    handles.append(hvd.allreduce_async(np.ones(4), name=f"{RANK}.{len(handles)}"))
    time.sleep(0.01)
""",
        WARN_ONLY,
    )
    until(lambda: all("has not submitted" in rank.err() for rank in job.ranks), "a report on every rank")
    assert f"{who(job, 1)} has not submitted 'allreduce.0.0'" in job[0].err()
    assert f"{who(job, 0)} has not submitted 'allreduce.1.0'" in job[0].err()
    job.flag("enough")
    for rank in job.ranks:
        rank.assert_no_crash()


def test_native_code_that_holds_the_interpreter(start: Start) -> None:
    """Such a rank cannot say where it stands; that it does not is said, and the job ends."""
    job = start(
        2,
        """
hvd.init()
flag(f"ready.{RANK}")
if RANK == 1:
    ctypes.PyDLL(None).usleep(ctypes.c_uint(1_000_000_000))  # keeps the interpreter's lock
tell_error(hvd.allreduce, np.ones(4), name="awaited")
""",
        WITH_END,
    )
    assert job[0].wait() == 0
    [told] = job[0].told()
    assert "native code holds its Python interpreter" in told["message"]


def test_joined_ranks_are_patient(start: Start) -> None:
    """A rank that has joined waits for the others' last step, however long that takes."""
    job = start(
        2,
        """
hvd.init()
if RANK == 1:
    for step in range(40):
        hvd.allreduce(np.ones(2), op=hvd.Sum, name="step")
        time.sleep(0.05)
tell(last=hvd.join())
""",
        WITH_END,
    )
    for rank in job.ranks:
        assert (rank.wait(), rank.told(), rank.err()) == (0, [{"last": 1}], "")


def test_switched_off(start: Start) -> None:
    job = start(
        2,
        """
hvd.init()
if RANK == 1:
    time.sleep(3)
hvd.allreduce(np.ones(4), name="late")
""",
        {**WITH_END, "HOROVOD_STALL_CHECK_DISABLE": "1"},
    )
    for rank in job.ranks:
        rank.assert_quiet_exit()


def test_the_defaults_are_the_originals() -> None:
    settings = Settings.from_env({})
    limits = (settings.stall_check_disable, settings.stall_check_seconds, settings.stall_shutdown_seconds)
    assert limits == (False, 60.0, 0.0)
