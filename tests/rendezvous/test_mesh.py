"""Connections between ranks: who does not know the secret stays outside and delays nobody."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.rendezvous import mesh
from tests.support.mutations import mutated

SECRET = secrets.token_bytes(32)
Outcome = tuple[dict[int, int], dict[int, int]] | mesh.MeshError


class Job:
    """Ranks as threads, each with a listener."""

    def __init__(self, size: int) -> None:
        self.listeners = [mesh.listen() for _ in range(size)]
        self.addresses = {rank: listener.getsockname() for rank, listener in enumerate(self.listeners)}
        self.outcomes: dict[int, Outcome] = {}
        self._threads: list[threading.Thread] = []

    def start(self, *ranks: int, secret: bytes = SECRET, timeout: float = 20.0) -> None:
        """Lets these ranks connect."""
        for rank in ranks:
            thread = threading.Thread(target=self._connect, args=(rank, secret, timeout))
            self._threads.append(thread)
            thread.start()

    def _connect(self, rank: int, secret: bytes, timeout: float) -> None:
        try:
            self.outcomes[rank] = mesh.connect(rank, self.addresses, self.listeners[rank], secret, timeout)
        except mesh.MeshError as error:
            self.outcomes[rank] = error

    def finish(self) -> None:
        """Waits for everybody."""
        for thread in self._threads:
            thread.join()
        for listener in self.listeners:
            listener.close()

    def connected(self) -> dict[int, tuple[dict[int, int], dict[int, int]]]:
        """The outcomes, all of which must be connections."""
        self.finish()
        good = {
            rank: outcome
            for rank, outcome in self.outcomes.items()
            if not isinstance(outcome, mesh.MeshError)
        }
        assert set(good) == set(range(len(self.listeners))), self.outcomes
        return good


def _assert_wired(job: Job) -> None:
    """What each rank writes to another comes out there, on the connection of that kind; closes them."""
    worlds = job.connected()
    size = len(worlds)
    pairs = [(kind, a, b) for kind in (0, 1) for a in range(size) for b in range(size) if a != b]
    for kind, a, b in pairs:
        os.write(worlds[a][kind][b], bytes([kind, a, b]))
    for kind, a, b in pairs:
        os.set_blocking(worlds[b][kind][a], True)
        assert os.read(worlds[b][kind][a], 3) == bytes([kind, a, b])
    for kind, a, b in pairs:
        os.close(worlds[a][kind][b])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_everybody_is_connected_with_everybody(size: int) -> None:
    job = Job(size)
    job.start(*range(size))
    _assert_wired(job)


INTRODUCTION = mesh._INTRODUCTION.pack(mesh._MAGIC, 1, 0)
STRANGERS = {
    "silent": b"",
    "garbage": b"GET / HTTP/1.1\r\n\r\n" * 20,
    "truncated": INTRODUCTION[:5],
    "wrong magic": b"XXXX" + INTRODUCTION[4:] + bytes(64),
    "wrong proof": INTRODUCTION + bytes(32) + bytes(32),
    "unknown rank": mesh._INTRODUCTION.pack(mesh._MAGIC, 77, 0) + bytes(64),
    "unknown kind": mesh._INTRODUCTION.pack(mesh._MAGIC, 1, 9) + bytes(64),
    "long": bytes(1 << 20),
}


@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("stays", [True, False])
def test_strangers_stay_outside(kind: str, stays: bool) -> None:
    """They come first, and the real peer gets in all the same."""
    job = Job(3)
    job.start(0)
    strangers = [socket.create_connection(job.addresses[rank]) for rank in (0, 0, 1)]
    for stranger in strangers:
        stranger.settimeout(5)
        _send_what_goes(stranger, STRANGERS[kind])
        if not stays:
            stranger.close()
    job.start(1, 2)
    _assert_wired(job)
    for stranger in strangers:
        stranger.close()


def _send_what_goes(stranger: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # refused already
        stranger.sendall(data)


def test_a_stranger_learns_nothing_it_can_use() -> None:
    """A replayed proof is worthless: both sides' challenges are in it."""
    job = Job(2)
    job.start(0)
    with socket.create_connection(job.addresses[0]) as stranger:
        stranger.sendall(INTRODUCTION + bytes(32))
        stranger.settimeout(5)
        answer = mesh._receive(stranger, 64)
        stranger.sendall(answer[32:])  # the acceptor's own proof, sent back
        assert stranger.recv(1) == b""
    job.start(1)
    _assert_wired(job)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_wrong_secret(wrong: int) -> None:
    job = Job(3)
    job.start(*{0, 1, 2} - {wrong}, timeout=1.0)
    job.start(wrong, secret=bytes(32), timeout=1.0)
    job.finish()
    assert all(isinstance(outcome, mesh.MeshError) for outcome in job.outcomes.values()), job.outcomes


def test_the_missing_are_named_and_nothing_leaks() -> None:
    before = len(os.listdir("/proc/self/fd"))
    job = Job(3)
    job.start(0, 1, timeout=2.0)
    job.finish()
    assert "rank(s) [2]" in str(job.outcomes[0])
    assert "rank(s) [2]" in str(job.outcomes[1])
    assert len(os.listdir("/proc/self/fd")) == before


@settings(max_examples=25, deadline=None)
@given(calls=st.lists(mutated([INTRODUCTION + bytes(32), INTRODUCTION + bytes(64)]), min_size=1, max_size=8))
def test_callers_that_say_anything(calls: list[bytes]) -> None:
    job = Job(2)
    job.start(0)
    strangers = [socket.create_connection(job.addresses[0]) for _ in calls]
    for stranger, data in zip(strangers, calls, strict=True):
        _send_what_goes(stranger, data)
    job.start(1)
    _assert_wired(job)
    for stranger in strangers:
        stranger.close()


def test_a_flood_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(2)
    job.start(0)
    strangers = [socket.create_connection(job.addresses[0]) for _ in range(400)]
    job.start(1)
    _assert_wired(job)
    for stranger in strangers:
        stranger.close()
    refused = [record.message for record in caplog.records if "refused" in record.message]
    assert len(refused) == 4, refused
    assert refused[-1].endswith("more")
    assert "127.0.0.1:" in refused[0]
