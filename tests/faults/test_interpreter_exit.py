"""The interpreter ends, on one rank or all, with work that nobody waits for: no crash, no hang, a message.

``test_exit.py`` has the ways in which one rank can end while another waits; here is what several do at once.
"""

from __future__ import annotations

import pytest
from jobs import Start

SIZE = 3

UNSYNCHRONIZED = """
hvd.init()
hvd.allreduce(np.ones(3), name="warm")
mine = os.environ["WHO"] in ("all", str(RANK))
handles = [hvd.allreduce_async(np.full(1 << (i % 17), 1.0), op=hvd.Sum, name=f"t{i}") for i in range(60)]
if not mine:
    tell_error(lambda: [hvd.synchronize(handle) for handle in handles])
    tell_error(hvd.barrier)
"""


@pytest.mark.parametrize("who", ["all", "0", "2"])
def test_handles_that_nobody_synchronizes(start: Start, plane: dict[str, str], who: str) -> None:
    job = start(SIZE, UNSYNCHRONIZED, {"WHO": who, **plane})
    for rank in job.ranks:
        rank.assert_quiet_exit()
    survivors = [] if who == "all" else job.others(int(who))
    for survivor in survivors:
        # The operations may have come to their end in time; the barrier cannot.
        _, barrier = survivor.told()
        assert barrier["error"] == "PeerLostError"
        assert f"rank {who} (host testhost, pid {job[int(who)].pid})" in barrier["message"]


DAEMONS = """
hvd.init()
hvd.allreduce(np.ones(3), name="warm")
def wait(number):
    flag(f"in.{RANK}.{number}")
    while True: hvd.allreduce(np.ones(1 << 14), name=f"{os.environ['NAMES']}.{number}.{RANK * different}")
different = os.environ["NAMES"] == "never"
threading.excepthook = lambda args: None
for number in range(4): threading.Thread(target=wait, args=(number,), daemon=True).start()
for rank in range(SIZE):
    for number in range(4): await_flag(f"in.{rank}.{number}")
time.sleep(0.02 * RANK)
"""


@pytest.mark.parametrize("names", ["shared", "never"])
def test_daemon_threads_inside_of_collectives_on_all_ranks(
    start: Start, plane: dict[str, str], names: str
) -> None:
    job = start(SIZE, DAEMONS, {"NAMES": names, **plane})
    for rank in job.ranks:
        rank.assert_quiet_exit()


ATEXIT = """
hvd.init()
atexit.register(lambda: tell(sum=float(hvd.allreduce(np.float32(RANK + 1), op=hvd.Sum, name="at exit"))))
def fail(): raise ValueError("in a handler")
if os.environ["FAIL"] == str(RANK): atexit.register(fail)
hvd.allreduce_async(np.ones(1 << 15), name="nobody waits")
"""


@pytest.mark.parametrize("fail", ["none", "0", "2"])
def test_handlers_at_exit_still_have_the_world(start: Start, fail: str) -> None:
    job = start(SIZE, ATEXIT, {"FAIL": fail})
    for rank in job.ranks:
        assert rank.wait() == 0, rank.err()
        assert rank.told() == [{"sum": 6.0}]
        assert ("ValueError: in a handler" in rank.err()) == (fail == str(rank.number))


RAISING = """
hvd.init()
kind = {"ValueError": ValueError, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}
def fail(error):
    flag(f"called.{RANK}")
    raise kind[os.environ["KIND"]]("in a callback")
for step in range(5):
    handle = hvd.allreduce_async(np.full(1 << (4 * step), 1.0), op=hvd.Sum, name="x", callback=fail)
    assert np.all(hvd.synchronize(handle) == SIZE)
await_flag(f"called.{RANK}")
reduce_forever(limit=5)
hvd.allreduce_async(np.ones(4), name="last", callback=fail)
tell(done=True)
"""


@pytest.mark.parametrize("kind", ["ValueError", "SystemExit", "KeyboardInterrupt"])
def test_callbacks_that_raise_are_reported_and_no_more(start: Start, kind: str) -> None:
    job = start(2, RAISING, {"KIND": kind})
    for rank in job.ranks:
        assert rank.wait() == 0, rank.err()
        assert rank.told() == [{"done": True}]
        assert f"{kind}: in a callback" in rank.err()
        assert "Fatal" not in rank.err()


IN_INIT = """
HOW = os.environ["HOW"]
def join():
    flag("joining")
    hvd.init()
if HOW == "interrupt":
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try: hvd.init()
    except KeyboardInterrupt: tell(interrupted=True)
else:
    threading.excepthook = lambda args: None
    threading.Thread(target=join, daemon=True).start()
    await_flag("joining")
    time.sleep(0.3)
    tell(leaving=True)
"""


@pytest.mark.parametrize("how", ["interrupt", "leave"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_an_end_while_init_waits_for_a_rank_that_never_comes(start: Start, rank: str, how: str) -> None:
    # Neither an interrupt nor the interpreter's end waits until init() gives up.
    who = {"HOROVOD_RANK": rank, "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": "2"}
    job = start(1, IN_INIT, {"HOW": how, "HOROVOD_START_TIMEOUT": "300", **who})
    job[0].assert_quiet_exit()
    assert job[0].told() == [{"interrupted": True} if how == "interrupt" else {"leaving": True}]
