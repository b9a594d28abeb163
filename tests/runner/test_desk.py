"""The launcher's desk: answers in time, bounded, deaf to nonsense, gone after the job."""

from __future__ import annotations

import array
import os
import selectors
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horovod.rendezvous.addresses import launcher_address
from horovod.rendezvous.desk import CheckIn, Ended, HowEnded, check_in, how_ended
from horovod.runner.desk import SPARE_CALLERS, Desk, roll_call

LONG = 60.0
SIZE = 4


class Served:
    """A desk with the loop that serves it."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.job_id = uuid.uuid4().hex
        self.said: list[str] = []
        self.desk = Desk(self.job_id, SIZE, self.said.append, verbose=verbose)
        self.selector = selectors.PollSelector()
        self.desk.serve(self.selector)

    def pump(self, until: Callable[[], object]) -> None:
        """Serve until the condition holds."""
        for _ in range(int(LONG / 0.01)):
            if until():
                return
            for key, _ in self.selector.select(0.01):
                key.data()
        raise AssertionError("waited in vain")

    def settle(self) -> None:
        """Serve what has come: what this process has sent is there at once."""
        while ready := self.selector.select(0):
            for key, _ in ready:
                key.data()

    def call(self) -> socket.socket:
        """A bare connection."""
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            caller.connect(launcher_address(self.job_id))
        except OSError:
            caller.close()
            raise
        return caller


@pytest.fixture
def served() -> Iterator[Served]:
    """A desk of a job of four ranks."""
    served = Served()
    yield served
    served.desk.close()
    served.selector.close()


def ask(served: Served, rank: int, timeout: float = LONG) -> str | None:
    return how_ended(served.job_id, rank, timeout, asker=0)


def test_an_end_that_is_known(served):
    served.desk.tell_end(2, "exit code 3")
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, served, 2)
        served.pump(answer.done)
    assert answer.result() == "exit code 3"


def test_many_wait_for_an_end_and_one_of_them_dies(served):
    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(ask, served, 1) for _ in range(16)]
        dying = served.call()
        dying.send(msgspec.json.encode(HowEnded(1, 0)))
        served.pump(lambda: sum(c.asks_about == 1 for c in served.desk._callers) == 17)
        dying.close()
        served.desk.tell_end(0, "exit code 0")
        served.desk.tell_end(1, "killed by SIGSEGV (11)")
        served.desk.tell_end(1, "something else")
        served.pump(lambda: all(answer.done() for answer in answers))
    assert [answer.result() for answer in answers] == ["killed by SIGSEGV (11)"] * 16
    assert served.said == []


def test_a_rank_that_still_runs(served):
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, served, 1, 0.2)
        served.pump(answer.done)
    assert answer.result() is None
    served.settle()
    assert served.desk._callers == []


GARBAGE = [
    b"x",
    b"{}",
    b'{"type":"HowEnded","rank":-1,"asker":0}',
    b'{"type":"HowEnded","rank":4,"asker":0}',
    b'{"type":"HowEnded","rank":1e99,"asker":0}',
    b'{"type":"HowEnded","rank":"1","asker":0}',
    b'{"type":"HowEnded","rank":1,"asker":4}',
    b'{"type":"HowEnded","rank":1}',
    b'{"type":"CheckIn","rank":0}',
    b"[" * 20_000,
    b'{"type":"CheckIn","rank":0,"pid":1,"host":"' + b"h" * 60_000 + b'","cpus":"","plane":""}',
]


@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: repr(data[:40]))
def test_nonsense_is_turned_away_and_told_once(served, data):
    callers = [served.call() for _ in range(3)]
    sent = [caller.send(data) for caller in callers]
    served.settle()
    assert sent == [len(data)] * 3
    assert [caller.recv(10) for caller in callers] == [b""] * 3
    assert len(served.said) == 1
    assert f"pid {os.getpid()}) was turned away" in served.said[0]
    served.desk.tell_end(0, "exit code 1")
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, served, 0)
        served.pump(answer.done)
    assert answer.result() == "exit code 1"
    for caller in callers:
        caller.close()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=300))
def test_any_bytes_are_harmless(served, data):
    with served.call() as caller:
        caller.send(data)
        served.settle()
        assert caller.recv(10) == b""


def test_two_requests_on_one_connection(served):
    with served.call() as caller:
        caller.send(msgspec.json.encode(HowEnded(1, 0)))
        caller.send(msgspec.json.encode(HowEnded(2, 0)))
        served.settle()
        assert caller.recv(100) == b""


def test_descriptors_that_come_along_are_closed(served):
    before = len(os.listdir("/proc/self/fd"))
    with served.call() as caller:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
        caller.sendmsg([msgspec.json.encode(HowEnded(1, 0))], [rights])
        served.settle()
    served.settle()
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_users_process_is_turned_away_unheard(served, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    served.desk.tell_end(1, "exit code 3")
    with served.call() as caller:
        caller.send(msgspec.json.encode(HowEnded(1, 0)))
        served.settle()
        with pytest.raises(ConnectionResetError):
            caller.recv(100)
    assert "another user" in served.said[0]


def test_a_flood_of_silent_callers(served):
    with served.call() as asking:
        asking.send(msgspec.json.encode(HowEnded(3, 0)))
        flood = []
        for _ in range(3):
            flood += [served.call() for _ in range(100)]
            served.settle()
        limit = SPARE_CALLERS + 2 * SIZE
        assert len(served.desk._callers) == limit
        assert [bool(caller.recv(1)) for caller in flood[: 300 - (limit - 1)]] == [False] * (301 - limit)
        served.desk.tell_end(3, "exit code 9")
        assert msgspec.json.decode(asking.recv(1000), type=Ended).how == "exit code 9"
        for caller in flood:
            caller.close()
    served.settle()
    assert served.desk._callers == []
    assert served.said == []


def test_a_flood_of_askers_is_bounded(served):
    callers = []
    for _ in range(SPARE_CALLERS + 2 * SIZE + 5):
        callers.append(served.call())
        callers[-1].send(msgspec.json.encode(HowEnded(1, 0)))
        served.settle()
    assert len(served.desk._callers) == SPARE_CALLERS + 2 * SIZE
    for caller in callers:
        caller.close()


def test_no_descriptor_left_for_a_caller(served, monkeypatch):
    def accept(_self: socket.socket) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    with served.call():
        served.settle()
    assert served.said == ["the ranks cannot be answered any more (Too many open files)"]
    assert served.desk.fileno() == -1


def test_after_the_job_nobody_listens(served):
    with served.call() as caller:
        served.settle()
        served.desk.close()
        served.desk.close()
        assert caller.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        served.call()


def facts(rank: int, **changes: object) -> CheckIn:
    return CheckIn(**{"rank": rank, "pid": 10**rank, "host": "a", "cpus": "0-3,8", "plane": "shm", **changes})


def test_the_table_is_told_once_when_all_are_there():
    served = Served(verbose=True)
    for rank in (2, 0, 0, 3):
        check_in(served.job_id, facts(rank))
    served.settle()
    assert served.said == []
    check_in(served.job_id, facts(1, host="longer.example"))
    check_in(served.job_id, facts(1))
    served.settle()
    assert served.said == [
        "rank  host             pid  cpus   plane",
        "   0  a                  1  0-3,8  shm",
        "   1  longer.example    10  0-3,8  shm",
        "   2  a                100  0-3,8  shm",
        "   3  a               1000  0-3,8  shm",
    ]
    served.desk.close()
    served.selector.close()


def test_who_has_called_before_the_end_is_heard():
    served = Served(verbose=True)
    with served.call(), served.call() as early:
        served.settle()
        assert [check_in(served.job_id, facts(rank)) for rank in range(SIZE)] == [True] * SIZE
        early.send(b"nonsense")
        served.desk.finish()
    assert len(served.said) == 1 + SIZE + 1
    assert served.desk.fileno() == -1
    served.selector.close()


def test_a_table_cannot_move_the_cursor():
    lines = roll_call([facts(0, host="\x1b[2J\n", cpus="")])
    assert lines[1].split() == ["0", "?[2J?", "1", "-", "shm"]


# -- with the launcher

ASKS = """
import os, signal, sys, time
from horovod.rendezvous.desk import how_ended
rank, job = os.environ['RANK'], os.environ['HOROVOD_JOB_ID']
if rank == '0':
    {end}
print(how_ended(job, 0, 60, asker=int(rank)))
"""


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL (9)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV (11)"),
        ("sys.exit(3)", "exit code 3"),
        ("sys.exit(0)", "exit code 0"),
    ],
)
def test_survivors_learn_how_a_rank_ended(horovodrun, end, how):
    done = horovodrun.run("-np", "3", sys.executable, *horovodrun.script(ASKS.format(end=end))[2:])
    assert sorted(done.stdout.decode().splitlines()) == [f"[{rank}]<stdout>:{how}" for rank in (1, 2)]


def test_a_rank_that_runs_has_not_ended(horovodrun):
    code = "import os\nfrom horovod.rendezvous.desk import how_ended\n"
    code += "print(how_ended(os.environ['HOROVOD_JOB_ID'], 0, 0.2, asker=0))"
    done = horovodrun.run("-np", "1", sys.executable, *horovodrun.script(code)[2:])
    assert (done.returncode, done.stdout) == (0, b"[0]<stdout>:None\n")


FLOODS = """
import os, socket
from horovod.rendezvous.addresses import launcher_address
calls = []
for i in range(1000):
    call = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    call.connect(launcher_address(os.environ['HOROVOD_JOB_ID']))
    if i % 3 == 0: call.send(os.urandom(100))
    elif i % 3 == 1: calls.append(call)
print('went on')
"""


def test_a_flood_does_not_harm_the_job(horovodrun):
    done = horovodrun.run("-np", "1", sys.executable, *horovodrun.script(FLOODS)[2:])
    assert (done.returncode, done.stdout) == (0, b"[0]<stdout>:went on\n")
    assert done.stderr.count(b"turned away") == 1


def test_the_desk_is_the_launchers_alone(horovodrun):
    code = """
import os, time
inode = {f'socket:[{line.split()[6]}]' for line in open('/proc/net/unix')
         if os.environ['HOROVOD_JOB_ID'] in line}
def holders(pid):
    try: return [os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')]
    except OSError: return []
family = [pid for pid in os.listdir('/proc') if pid.isdigit() and inode & set(holders(pid))]
print(len(inode), [open(f'/proc/{pid}/comm').read().strip()[:6] for pid in family],
      os.getppid() in map(int, family), os.getpid() in map(int, family))
"""
    done = horovodrun.run("-np", "2", *horovodrun.script(code))
    assert sorted(done.stdout.decode().splitlines()) == [
        f"[{rank}]<stdout>:1 ['python'] False False" for rank in (0, 1)
    ]


def test_a_killed_launcher_answers_nobody(horovodrun):
    code = """
import os, signal
from horovod.rendezvous.desk import how_ended
here = os.path.dirname(os.path.abspath(__file__))
signal.signal(signal.SIGTERM, lambda *_: None)
open(f'{here}/up.0', 'w').close()
answer = how_ended(os.environ['HOROVOD_JOB_ID'], 0, 60, asker=0)
open(f'{here}/answer', 'w').write(repr(answer))
"""
    with horovodrun.start("-np", "1", sys.executable, *horovodrun.script(code)[2:]) as process:
        horovodrun.wait_for_files("up.0")
        process.send_signal(signal.SIGKILL)
    horovodrun.wait_for_files("answer")
    horovodrun.wait_until_all_gone()
    assert (horovodrun.tmp_path / "answer").read_text() in ("", "None")


INIT = "import horovod.numpy as hvd; hvd.init(); hvd.barrier()"


@pytest.mark.parametrize(("size", "plane"), [(1, "none"), (2, "shm"), (2, "tcp")])
def test_verbose_shows_where_the_ranks_are(horovodrun, size, plane):
    env = {"HOROVOD_CPU_OPERATIONS": plane} if size > 1 else {}
    done = horovodrun.run("-np", str(size), "--verbose", sys.executable, "-c", INIT, env=env)
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("horovodrun: ").split() for line in done.stderr.decode().splitlines()]
    table = lines[lines.index(["rank", "host", "pid", "cpus", "plane"]) + 1 :][:size]
    assert [(row[0], row[1], row[4]) for row in table] == [
        (str(rank), os.uname().nodename, plane) for rank in range(size)
    ]
