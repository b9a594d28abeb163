"""The decoder and the channel: whatever comes, a message or ``ChannelError``, and no descriptor leaks."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.rendezvous import messages
from horovod.rendezvous.messages import (
    MAX_BYTES,
    Addresses,
    Channel,
    ChannelError,
    Hello,
    Listening,
    Member,
    Message,
    NoRoomError,
    Ready,
    Refusal,
    Roster,
    Started,
    UseSharedMemory,
    UseSockets,
)
from tests.support.mutations import mutated

MESSAGES: list[Message] = [
    Hello(1, 2, "host", "1.0", "auto"),
    Hello(1, 2, "host", "1.0", "auto", "no eventfd"),
    Refusal("no"),
    Roster([Member(0, "a", 1, True), Member(1, "b", 2, False)], "00" * 16),
    Ready("00" * 16),
    UseSharedMemory(),
    UseSockets("why", "ff" * 32),
    Listening("127.0.0.1", 80),
    Addresses([Listening("127.0.0.1", 80)]),
    Started(),
]

Pair = tuple[Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours)
    with theirs:
        yield channel, theirs
    channel.close()


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_there_and_back(pair: Pair, message: Message) -> None:
    channel, theirs = pair
    other = Channel(theirs.dup())
    other.send(message, [0, 1])
    received, descriptors = channel.receive(5)
    for descriptor in descriptors:
        os.close(descriptor)
    other.close()
    assert received == message
    assert len(descriptors) == 2


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"type":"Nobody"}',
        b'{"type":"Hello"}',
        b'{"type":"Hello","rank":"1","size":2,"host":"h","version":"1","plane":"auto"}',
        b'{"type":"Hello","rank":1.5,"size":2,"host":"h","version":"1","plane":"auto"}',
        b'{"type":"Hello","rank":1,"size":2,"host":"h","version":"1","plane":"auto","more":1}',
        b'{"type":"Roster","members":[1],"region_nonce":""}',
        b"\x00" * 100,
        b"\xff\xfe" * 50,
        b"[" * 100_000,
        b"x" * (MAX_BYTES + 1),
        b"",
    ],
    ids=lambda data: repr(data[:30]),
)
@pytest.mark.parametrize("descriptors", [0, 3])
def test_nonsense_is_refused(pair: Pair, data: bytes, descriptors: int) -> None:
    channel, theirs = pair
    before = _open_descriptors()
    socket.send_fds(theirs, [data], [0] * descriptors)
    with pytest.raises(ChannelError):
        channel.receive(5)
    assert _open_descriptors() == before


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_cut_off(pair: Pair, message: Message, share: float) -> None:
    channel, theirs = pair
    data = msgspec.json.encode(message)
    theirs.send(data[: max(1, int(len(data) * share))])
    with pytest.raises(ChannelError):
        channel.receive(5)


def test_too_many_descriptors(pair: Pair) -> None:
    channel, theirs = pair
    before = _open_descriptors()
    socket.send_fds(theirs, [msgspec.json.encode(Started())], [0] * 253)
    with pytest.raises(ChannelError, match="too many descriptors"):
        channel.receive(5)
    assert _open_descriptors() == before


def test_no_room_for_descriptors(pair: Pair) -> None:
    channel, theirs = pair
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = _open_descriptors()
    socket.send_fds(theirs, [msgspec.json.encode(Started())], [0] * 5)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, limits[1]))
    try:
        with pytest.raises(NoRoomError, match="ulimit -n"):
            channel.receive(5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert _open_descriptors() == before


def test_the_other_side_is_gone(pair: Pair) -> None:
    channel, theirs = pair
    theirs.close()
    with pytest.raises(ChannelError, match="closed"):
        channel.receive(5)
    with pytest.raises(ChannelError, match="broke"):
        channel.send(Started())


def test_silence(pair: Pair) -> None:
    channel, _ = pair
    with pytest.raises(TimeoutError):
        channel.receive(0.01)


@settings(max_examples=120, deadline=None)
@given(
    data=st.binary(min_size=0, max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["type", "rank", "size", "host", "members"]) | st.text(), inner)
        ),
    ).map(msgspec.json.encode)
)
def test_random_bytes(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours)
    try:
        with theirs:
            theirs.send(data)
        with pytest.raises(ChannelError):
            channel.receive(5)
    finally:
        channel.close()


@settings(max_examples=120, deadline=None)
@given(data=mutated([msgspec.json.encode(message) for message in MESSAGES]), descriptors=st.integers(0, 2))
def test_what_was_a_message(data: bytes, descriptors: int) -> None:
    before = _open_descriptors()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours)
    try:
        with theirs:
            if data:  # nothing is no packet
                socket.send_fds(theirs, [data], [0] * descriptors)
        try:
            received, taken = channel.receive(5)
            assert isinstance(received, Message)
            assert msgspec.json.decode(msgspec.json.encode(received), type=Message) == received
            assert len(taken) == descriptors
            for descriptor in taken:
                os.close(descriptor)
        except ChannelError:
            pass
    finally:
        channel.close()
    assert _open_descriptors() == before


def test_a_last_word_is_heard(pair: Pair) -> None:
    """Although the other side had said something meanwhile, which nobody read."""
    channel, theirs = pair
    other = Channel(theirs.dup())
    theirs.close()
    other.send(Ready(""), [0])
    channel.refuse("no room")
    reader = threading.Thread(target=channel.drain, args=(time.monotonic() + 20,))
    reader.start()
    received, _ = other.receive(5)
    other.close()
    reader.join()
    assert received == Refusal("no room")


def test_a_peer_that_does_not_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, _ = pair
    monkeypatch.setattr(messages, "SEND_SECONDS", 0.05)
    many = (channel.send(Refusal("x" * 1000)) for _ in range(10_000))
    with pytest.raises(ChannelError, match="does not read"):
        list(many)
