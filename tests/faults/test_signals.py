"""Signals inside blocked calls: Ctrl-C and handlers run at once, and the operation survives them."""

from __future__ import annotations

import signal
import time

import pytest
from conftest import Start
from jobs import Job

INTERRUPT = """
import _thread
hvd.init()
CALLS = {
    "allreduce": lambda: hvd.allreduce(np.ones(1 << 16), name="late"),
    "small allreduce": lambda: hvd.allreduce(np.ones(2), name="late"),
    "broadcast": lambda: hvd.broadcast(np.ones(1 << 16), 1, name="late"),
    "barrier": hvd.barrier,
    "synchronize": lambda: hvd.synchronize(hvd.allreduce_async(np.ones(1 << 16), name="late")),
}
call = CALLS[os.environ["CALL"]]
if RANK == int(os.environ["VICTIM"]):
    def raise_in_thread():
        # The signal is delivered to this thread; Python must still run the handler in the blocked one.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        await_flag("signal")
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    if os.environ["TO"] == "thread":
        threading.Thread(target=raise_in_thread).start()
    flag("blocked")
    try:
        call()
    except KeyboardInterrupt:
        tell(interrupted=True)
        flag("interrupted")
else:
    await_flag("interrupted")
    time.sleep(0.05)
    call()  # the victim's part of it is still under way
hvd.allreduce(np.ones(3), name="after")
tell(done=True)
"""


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("to", ["process", "thread"])
@pytest.mark.parametrize("call", ["allreduce", "small allreduce", "broadcast", "barrier", "synchronize"])
def test_ctrl_c_in_a_blocked_call(start: Start, call: str, to: str, victim: int) -> None:
    job = start(2, INTERRUPT, {"CALL": call, "TO": to, "VICTIM": str(victim)})
    job.await_flags("blocked")
    interrupt_soon(job, victim, to)
    for rank in job.ranks:
        rank.assert_quiet_exit()
    assert job[victim].told() == [{"interrupted": True}, {"done": True}]
    assert job[1 - victim].told() == [{"done": True}]


def interrupt_soon(job: Job, victim: int, to: str = "process") -> None:
    """Sends SIGINT when the victim sleeps in its call."""
    time.sleep(0.2)
    assert job[victim].process.poll() is None, job[victim].err()
    if to == "thread":
        job.flag("signal")
    else:
        job[victim].kill(signal.SIGINT)


SYNCHRONIZE_AGAIN = """
hvd.init()
if RANK == 0:
    handle = hvd.allreduce_async_(np.full(1 << int(os.environ["BITS"]), 3.0), op=hvd.Sum, name="late")
    interrupts = 0
    flag("blocked")
    while True:
        try:
            result = hvd.synchronize(handle)
            break
        except KeyboardInterrupt:
            interrupts += 1
            flag("interrupted")
    assert np.all(result == 7.0), result
    assert hvd.synchronize(handle) is None
    tell(interrupts=interrupts)
else:
    await_flag("interrupted")
    time.sleep(0.1)
    assert np.all(hvd.allreduce(np.full(1 << int(os.environ["BITS"]), 4.0), op=hvd.Sum, name="late") == 7.0)
"""


@pytest.mark.parametrize("bits", [2, 18])
def test_a_handle_can_be_synchronized_again(start: Start, bits: int) -> None:
    job = start(2, SYNCHRONIZE_AGAIN, {"BITS": str(bits)})
    job.await_flags("blocked")
    interrupt_soon(job, 0)
    for rank in job.ranks:
        rank.assert_quiet_exit()
    assert job[0].told() == [{"interrupts": 1}]


HANDLER = """
hvd.init()
if RANK == 0:
    def on_term(signum, frame):
        tell(handled=signum)
        flag("handled")
    signal.signal(signal.SIGTERM, on_term)
    flag("blocked")
else:
    await_flag("handled")
result = hvd.allreduce(np.full(1 << 16, RANK + 1.0), op=hvd.Sum, name="late")
assert np.all(result == 3.0)
tell(done=True)
"""


def test_a_sigterm_handler_runs_inside_a_blocked_call(start: Start) -> None:
    job = start(2, HANDLER)
    job.await_flags("blocked")
    job[0].kill(signal.SIGTERM)
    for rank in job.ranks:
        rank.assert_quiet_exit()
    assert job[0].told() == [{"handled": 15}, {"done": True}]


EXIT_IN_HANDLER = """
hvd.init()
def on_term(signum, frame): sys.exit(5)
signal.signal(signal.SIGTERM, on_term)
flag(f"up.{RANK}")
if RANK == 0: hvd.barrier()
else: tell_error(hvd.allreduce, np.ones(3), name="never")
"""


def test_a_handler_that_exits(start: Start) -> None:
    job = start(2, EXIT_IN_HANDLER)
    job.await_flags("up.0", "up.1")
    job[0].kill(signal.SIGTERM)
    assert (job[0].wait(), job[0].err()) == (5, "")
    job[1].assert_quiet_exit()
    (told,) = job[1].told()
    assert told["error"] == "PeerLostError"
    assert "'allreduce.never'" in told["message"]


DEFAULT_SIGTERM = """
hvd.init()
flag(f"up.{RANK}")
tell_error(hvd.allreduce, np.ones(3), name=f"mine.{RANK}")
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_the_default_action_ends_a_blocked_rank(start: Start, signum: int) -> None:
    job = start(2, DEFAULT_SIGTERM)
    job.await_flags("up.0", "up.1")
    job[0].kill(signum)
    assert job[0].wait() == -signum
    job[1].assert_quiet_exit()
    (told,) = job[1].told()
    assert told["error"] == "PeerLostError"
    assert "'allreduce.mine.1'" in told["message"]


UNCAUGHT = """
hvd.init()
flag(f"up.{RANK}")
hvd.allreduce(np.ones(3), name=f"mine.{RANK}")
"""


def test_an_uncaught_ctrl_c_ends_the_rank_and_tells_the_other(start: Start) -> None:
    job = start(2, UNCAUGHT)
    job.await_flags("up.0", "up.1")
    interrupt_soon(job, 0)
    assert job[0].wait() == -signal.SIGINT
    assert job[1].wait() == 1
    assert "KeyboardInterrupt" in job[0].err()
    assert "has shut down" in job[1].err()


STORM = """
hvd.init()
count = 0
def on_alarm(signum, frame):
    global count
    count += 1
signal.signal(signal.SIGALRM, on_alarm)
if os.environ["WHO"] == "all" or RANK == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
rng = np.random.default_rng(RANK)
for step in range(2000):
    bits = step % 16
    result = hvd.allreduce(np.full(1 << bits, RANK + step, dtype=np.int64), op=hvd.Sum, name=f"t{bits}")
    assert np.all(result == SIZE * step + SIZE * (SIZE - 1) // 2), step
signal.setitimer(signal.ITIMER_REAL, 0)
hvd.barrier()
tell(count=count)
"""


@pytest.mark.parametrize(("size", "who"), [(2, "all"), (3, "all"), (2, "one")])
def test_a_storm_of_signals(start: Start, size: int, who: str) -> None:
    job = start(size, STORM, {"WHO": who})
    for rank in job.ranks:
        rank.assert_quiet_exit()
    assert job[0].told()[0]["count"] > 10


INTERRUPTED_IN_HANDLER = """
class Timeout(Exception): pass
def on_alarm(signum, frame): raise Timeout
signal.signal(signal.SIGALRM, on_alarm)
hvd.init()
raised = 0
for step in range(300):
    if RANK == 0:
        result = np.full(1 << (step % 18), step, dtype=np.int64)
        handle = hvd.allreduce_async_(result, op=hvd.Sum, name=f"t{step % 18}")
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                hvd.synchronize(handle)
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except Timeout:
                raised += 1
    else:
        if step % 20 == 0: time.sleep(0.02)
        result = hvd.allreduce(np.full(1 << (step % 18), step, dtype=np.int64), op=hvd.Sum, name=f"t{step % 18}")
    assert np.all(result == 2 * step), step
tell(raised=raised)
"""

BUFFERS = """
hvd.init()
count = 1 << int(os.environ["BITS"])
if RANK == 0:
    array = np.full(count, 3.0)
    flag("blocked")
    try:
        hvd.allreduce_(array, op=hvd.Sum, name="dropped")
    except KeyboardInterrupt:
        tell(interrupted=True)
    del array
    gc.collect()
    garbage = [np.full(count, -1.0) for _ in range(8)]
    flag("dropped")
    await_flag("reduced")
    gc.collect()
    assert all(np.all(g == -1.0) for g in garbage)  # nobody has written into memory that is ours
    hvd.allreduce(np.ones(3), name="after")
else:
    await_flag("dropped")
    result = hvd.allreduce(np.full(count, 4.0), op=hvd.Sum, name="dropped")
    assert np.all(result == 7.0), result
    flag("reduced")
    hvd.allreduce(np.ones(3), name="after")
tell(done=True)
"""


@pytest.mark.parametrize("bits", [2, 10, 20])
def test_buffers_live_on_after_an_interrupt(start: Start, bits: int) -> None:
    job = start(2, BUFFERS, {"BITS": str(bits)})
    job.await_flags("blocked")
    interrupt_soon(job, 0)
    for rank in job.ranks:
        rank.assert_quiet_exit()
    assert job[0].told() == [{"interrupted": True}, {"done": True}]
    assert job[1].told() == [{"done": True}]


RELEASED = """
import weakref
class Array(np.ndarray): pass
hvd.init()
if RANK == 0:
    array = np.full(1 << 12, 3.0).view(Array)
    watch = weakref.ref(array)
    flag("blocked")
    try:
        hvd.allreduce_(array, op=hvd.Sum, name="dropped")
    except KeyboardInterrupt:
        pass
    del array
    gc.collect()
    assert watch() is not None  # the engine still needs it
    flag("dropped")
    hvd.barrier()
    hvd.allreduce(np.ones(3), name="after")
    hvd.allreduce(np.ones(3), name="after")
    gc.collect()
    tell(released=watch() is None)
else:
    await_flag("dropped")
    hvd.allreduce(np.full(1 << 12, 4.0), op=hvd.Sum, name="dropped")
    hvd.barrier()
    hvd.allreduce(np.ones(3), name="after")
    hvd.allreduce(np.ones(3), name="after")
"""


def test_buffers_are_released_when_the_engine_is_done(start: Start) -> None:
    job = start(2, RELEASED)
    job.await_flags("blocked")
    interrupt_soon(job, 0)
    for rank in job.ranks:
        rank.assert_quiet_exit()
    assert job[0].told() == [{"released": True}]


def test_exceptions_from_handlers_in_the_middle_of_transfers(start: Start) -> None:
    job = start(2, INTERRUPTED_IN_HANDLER)
    for rank in job.ranks:
        rank.assert_quiet_exit()
    assert job[0].told()[0]["raised"] > 0


INIT = """
flag(f"up.{RANK}")
if RANK == 0:
    try:
        hvd.init()
    except KeyboardInterrupt:
        tell(interrupted=True, initialized=hvd.is_initialized())
else:
    time.sleep(60)
"""


def test_ctrl_c_in_init(start: Start) -> None:
    job = start(2, INIT)
    job.await_flags("up.0")
    interrupt_soon(job, 0)
    job[0].assert_quiet_exit()
    assert job[0].told() == [{"interrupted": True, "initialized": False}]
