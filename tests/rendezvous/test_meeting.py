"""The meeting with strangers at the door: junk, silence and liars do not keep the ranks apart."""

from __future__ import annotations

import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from horovod.exceptions import InitError
from horovod.rendezvous import meeting
from horovod.rendezvous.invitation import address
from horovod.rendezvous.messages import Hello, Ready, Refusal, Started

VERSION = "test"


def _invitation(rank: int, size: int, job: str, timeout: float = 20.0) -> meeting.Invitation:
    def create_region() -> int:
        region = os.memfd_create("test", os.MFD_CLOEXEC)
        os.ftruncate(region, 8192)
        return region

    return meeting.Invitation(
        rank, size, "host", job, 1, VERSION, "auto", timeout, create_region, 8192, 4096 - 16
    )


class Engine:
    """What a rank starts: nothing, but it can be ended."""

    def shutdown(self) -> None:
        """Nothing to end."""


def _meet(invitation: meeting.Invitation) -> meeting.World:
    world, _, claim = meeting.meet(invitation, lambda _: Engine())
    claim.close()
    return world


class Meeting:
    """Ranks as threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.job = secrets.token_hex(8)
        self.worlds: dict[int, meeting.World] = {}
        self.errors: dict[int, BaseException] = {}
        self._threads: list[threading.Thread] = []

    def start(self, *ranks: int, timeout: float = 20.0) -> None:
        """Lets these ranks come."""
        for rank in ranks:
            thread = threading.Thread(target=self._meet, args=(rank, timeout))
            self._threads.append(thread)
            thread.start()

    def _meet(self, rank: int, timeout: float) -> None:
        try:
            self.worlds[rank] = _meet(_invitation(rank, self.size, self.job, timeout))
        except BaseException as error:
            self.errors[rank] = error

    def stranger(self) -> socket.socket:
        """A connection to rank 0, which is waited for."""
        end = time.monotonic() + 20
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(address(_invitation(0, self.size, self.job)))
                return connection
            except ConnectionRefusedError:
                connection.close()
                assert time.monotonic() < end
                time.sleep(0.002)

    def finish(self) -> None:
        """Waits for everybody; all must have the same world."""
        for thread in self._threads:
            thread.join()
        assert self.errors == {}
        for rank, world in self.worlds.items():
            assert [member.rank for member in world.members] == list(range(self.size))
            assert set(world.watch) == set(range(self.size)) - {rank}
            assert world.region is not None
            world.close()


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _hello(**changes: object) -> bytes:
    fields: dict[str, object] = {"rank": 1, "size": 3, "host": "x", "version": VERSION, "plane": "auto"}
    return msgspec.json.encode(Hello(**{**fields, **changes}))  # type: ignore[arg-type]


JUNK: dict[str, bytes] = {
    "garbage": b"\x00\x01\x02junk",
    "no utf-8": b'{"type":"Hell\x80","rank":1}',
    "truncated": _hello()[:-5],
    "huge": b"x" * 150_000,
    "huge json": b'{"type":"Hello","host":"' + b"x" * 100_000 + b'"}',
    "deep": b"[" * 50_000,
    "wrong type": b'{"type":"Hello","rank":"one","size":3,"host":"h","version":"test","plane":"auto"}',
    "another message": msgspec.json.encode(Ready("")),
    "a refusal": msgspec.json.encode(Refusal("go away")),
    "confirmation": msgspec.json.encode(Started()),
    "empty": b"",
    "wrong size": _hello(size=99),
    "wrong version": _hello(version="other"),
    "rank 0": _hello(rank=0),
    "negative rank": _hello(rank=-1),
    "rank too high": _hello(rank=3),
    "other plane": _hello(plane="tcp"),
    "no descriptor": _hello(),
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("descriptors", [0, 2])
@pytest.mark.parametrize("stays", [True, False])
def test_junk_does_not_keep_the_ranks_apart(junk: str, descriptors: int, stays: bool) -> None:
    before = _open_descriptors()
    job = Meeting(3)
    job.start(0)
    with job.stranger() as stranger:
        socket.send_fds(stranger, [JUNK[junk]], [0] * descriptors)
        if not stays:
            stranger.close()
        job.start(1, 2)
        job.finish()
    assert _open_descriptors() == before


@pytest.mark.parametrize("strangers", [1, 20])
def test_silence_does_not_keep_the_ranks_apart(strangers: int) -> None:
    before = _open_descriptors()
    job = Meeting(3)
    job.start(0, 1)
    silent = [job.stranger() for _ in range(strangers)]
    job.start(2)
    job.finish()
    assert all(connection.recv(100) == b"" for connection in silent), "rank 0 keeps strangers"
    for connection in silent:
        connection.close()
    assert _open_descriptors() == before


def test_a_rank_that_is_taken_is_told_so() -> None:
    job = Meeting(3)
    job.start(0)
    with job.stranger() as first, job.stranger() as second:
        socket.send_fds(first, [_hello()], [0])
        time.sleep(0.05)
        socket.send_fds(second, [_hello()], [0])
        refusal = msgspec.json.decode(second.recv(10_000), type=Refusal)
    assert f"pid {os.getpid()}" in refusal.reason
    for thread in job._threads:
        thread.join()
    assert isinstance(job.errors[0], InitError)  # the false rank 1 left


@pytest.mark.parametrize(
    ("ranks", "message"),
    [([0], "rank(s) 1, 2 of 3"), ([0, 2], "rank(s) 1 of 3"), ([1], "rank 0 of job")],
    ids=str,
)
def test_the_missing_are_named_and_nothing_leaks(ranks: list[int], message: str) -> None:
    before = _open_descriptors()
    job = Meeting(3)
    job.start(*ranks, timeout=0.2)
    for thread in job._threads:
        thread.join()
    assert job.worlds == {}
    assert set(job.errors) == set(ranks)
    assert all(message in str(error) for error in job.errors.values()), job.errors
    assert _open_descriptors() == before


def _cannot() -> int:
    raise OSError("no memory here")


@pytest.mark.parametrize("create", [_cannot], ids=["no region"])
def test_without_shared_memory_the_ranks_use_sockets(create: Callable[[], int]) -> None:
    before = _open_descriptors()
    job = Meeting(3)
    worlds: dict[int, meeting.World] = {}

    def meet(rank: int) -> None:
        invitation = _invitation(rank, 3, job.job)
        object.__setattr__(invitation, "create_region", create)
        worlds[rank] = _meet(invitation)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {rank: sorted(world.control) for rank, world in worlds.items()} == {
        0: [1, 2],
        1: [0, 2],
        2: [0, 1],
    }
    assert all("no memory here" in world.why_sockets and world.region is None for world in worlds.values())
    for world in worlds.values():
        world.close()
    assert _open_descriptors() == before


def _fails(_: meeting.World) -> Engine:
    raise RuntimeError("timerfd_create: Too many open files")


@pytest.mark.parametrize("unlucky", [0, 2])
def test_a_rank_that_cannot_start_is_everybodys_error(unlucky: int) -> None:
    before = _open_descriptors()
    job = secrets.token_hex(8)
    errors: dict[int, str] = {}
    ended: list[int] = []

    class Running(Engine):
        def shutdown(self) -> None:
            ended.append(1)

    def meet(rank: int) -> None:
        def start(world: meeting.World) -> Engine:
            world.close()
            return _fails(world) if rank == unlucky else Running()

        with pytest.raises(InitError) as caught:
            meeting.meet(_invitation(rank, 3, job), start)
        errors[rank] = str(caught.value)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(errors) == [0, 1, 2]
    assert all(f"Rank {unlucky}" in error and "ulimit -n" in error for error in errors.values()), errors
    assert len(ended) == 2
    assert _open_descriptors() == before


def test_pidfds_for_some_ranks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are watched by their connections, which stay open on both sides."""
    before = _open_descriptors()
    opened: list[int] = []
    pidfd_open = os.pidfd_open

    def first_two(pid: int) -> int:
        opened.append(pid)
        if len(opened) > 2:
            raise PermissionError(1, "no")
        return pidfd_open(pid)

    monkeypatch.setattr(os, "pidfd_open", first_two)
    job = secrets.token_hex(8)
    outcomes: dict[int, tuple[meeting.World, Engine, meeting.Claim]] = {}

    def meet(rank: int) -> None:
        outcomes[rank] = meeting.meet(_invitation(rank, 3, job), lambda _: Engine())

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (unseen,) = [member.rank for member in outcomes[0][0].members if not member.has_pidfd]
    watched = outcomes[0][0].watch[unseen]
    assert select.select([watched], [], [], 0.6) == ([], [], []), "it lives"
    outcomes[unseen][2].close()
    assert select.select([watched], [], [], 20) == ([watched], [], [])
    for world, _, claim in outcomes.values():
        world.close()
        claim.close()
    assert _open_descriptors() == before


CLAIMING = """
import sys, time
from horovod.rendezvous.claim import Claim
from horovod.rendezvous.invitation import Deadline, Invitation
claim = Claim(Invitation(1, 3, "", sys.argv[1], 1, "", "", 0, lambda: 0, 0, 0), Deadline(5))
print("claimed", flush=True)
time.sleep(600)
"""


def test_a_pretender_while_the_rank_is_on_its_way() -> None:
    job = Meeting(3)
    job.start(0, 2)
    with subprocess.Popen([sys.executable, "-c", CLAIMING, job.job], stdout=subprocess.PIPE) as real:
        assert real.stdout is not None
        real.stdout.readline()
        with job.stranger() as pretender:
            socket.send_fds(pretender, [_hello()], [0])
            refusal = msgspec.json.decode(pretender.recv(10_000), type=Refusal)
        real.kill()
    assert refusal.reason == f"Rank 1 is pid {real.pid}, not pid {os.getpid()}."
    job.start(1)
    job.finish()


def test_names_tell_nothing_of_the_next_ones() -> None:
    first, second = (address(replace(_invitation(0, 2, "a job"), generation=n)) for n in (1, 2))
    assert first != second
    assert "a job" not in first
