"""The ranks' side of the launcher's desk: it helps if it can, and never fails, waits long or leaks."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.rendezvous.addresses import launcher_address
from horovod.rendezvous.desk import CheckIn, Ended, HowEnded, Request, check_in, cpu_ranges, how_ended

FACTS = CheckIn(rank=1, pid=7, host="a", cpus="0-3,8", plane="shm")
LONG = 60.0


class Launcher:
    """A listener that takes calls one by one."""

    def __init__(self, backlog: int = 8) -> None:
        self.job_id = uuid.uuid4().hex
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(launcher_address(self.job_id))
        self.socket.listen(backlog)

    def answer(self, act: Callable[[socket.socket], object]) -> threading.Thread:
        """Take one call in the background and do ``act`` with it."""

        def take() -> None:
            connection, _ = self.socket.accept()
            with connection:
                act(connection)

        thread = threading.Thread(target=take)
        thread.start()
        return thread


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    """A launcher whose answers the test decides."""
    launcher = Launcher()
    with launcher.socket:
        yield launcher


def test_a_check_in_arrives(launcher):
    heard: list[bytes] = []
    thread = launcher.answer(lambda connection: heard.append(connection.recv(4096)))
    assert check_in(launcher.job_id, FACTS)
    thread.join(LONG)
    assert [msgspec.json.decode(data, type=Request) for data in heard] == [FACTS]


def test_a_question_is_answered(launcher):
    def reply(connection: socket.socket) -> None:
        assert msgspec.json.decode(connection.recv(4096), type=Request) == HowEnded(2, 0)
        connection.send(msgspec.json.encode(Ended("killed by SIGKILL (9)")))

    thread = launcher.answer(reply)
    assert how_ended(launcher.job_id, 2, LONG, asker=0) == "killed by SIGKILL (9)"
    thread.join(LONG)


def test_nobody_is_there():
    descriptors = len(os.listdir("/proc/self/fd"))
    assert not check_in("no-such-job", FACTS)
    assert how_ended("no-such-job", 0, LONG, asker=0) is None
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_launcher_that_does_not_answer_in_time(launcher):
    assert check_in(launcher.job_id, FACTS)
    assert how_ended(launcher.job_id, 0, 0.05, asker=0) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b'{"type":"Ended"}',
        b'{"type":"Ended","how":3}',
        b'{"type":"Ended","how":"x","y":1}',
        b'{"type":"Ended","how":"' + b"x" * 1001 + b'"}',
    ],
)
def test_nonsense_is_no_answer(launcher, data):
    thread = launcher.answer(lambda connection: (connection.recv(4096), connection.send(data)))
    assert how_ended(launcher.job_id, 0, LONG, asker=0) is None
    thread.join(LONG)


def test_a_queue_that_is_full_delays_nobody_for_long():
    launcher = Launcher(backlog=0)
    with launcher.socket, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        first.connect(launcher_address(launcher.job_id))
        assert not check_in(launcher.job_id, FACTS)
        assert how_ended(launcher.job_id, 0, 0.05, asker=0) is None


def test_another_users_launcher_is_not_believed(launcher, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not check_in(launcher.job_id, FACTS)
    assert how_ended(launcher.job_id, 0, LONG, asker=0) is None


@pytest.mark.parametrize(
    ("cpus", "text"),
    [([0, 1, 2, 3, 8], "0-3,8"), ([5], "5"), ([], ""), ([3, 1, 2], "1-3"), ([0, 2, 4], "0,2,4")],
)
def test_cpu_ranges(cpus, text):
    assert cpu_ranges(cpus) == text


@settings(deadline=None)
@given(st.sets(st.integers(0, 300)))
def test_cpu_ranges_hold_every_cpu(cpus):
    read: set[int] = set()
    for part in filter(None, cpu_ranges(cpus).split(",")):
        first, _, last = part.partition("-")
        read |= set(range(int(first), int(last or first) + 1))
    assert read == cpus


def test_the_launchers_name_holds_the_job():
    assert launcher_address("abc") == "\0khorovod-abc-launcher"
