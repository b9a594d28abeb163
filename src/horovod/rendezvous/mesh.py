"""Socket connections between every two ranks, for worlds that share no memory.

Each pair gets two TCP connections, one for control and one for data. Both ends prove that they know the job's
secret, by HMAC over both sides' random challenges, before a byte is taken from them; a stranger on the port
learns nothing and delays nobody.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

_CHALLENGE = 32
_PROOF = 32
_INTRODUCTION = struct.Struct("!4sIB")  # magic, rank of the connecting side, kind
_MAGIC = b"KHO1"
_CONTROL, _DATA = 0, 1
_HANDSHAKE_SECONDS = 5.0

Connections = dict[tuple[int, int], int]  # (rank, kind) -> descriptor


class MeshError(Exception):
    """The connections could not be made in time."""


def listen() -> socket.socket:
    """A listener on loopback, at a free port."""
    return socket.create_server(("127.0.0.1", 0), backlog=256)


def connect(
    rank: int,
    addresses: Mapping[int, tuple[str, int]],
    listener: socket.socket,
    secret: bytes,
    timeout: float,
) -> tuple[dict[int, int], dict[int, int]]:
    """Connects to every lower rank, waits for every higher one; control and data descriptors, by rank."""
    deadline = time.monotonic() + timeout
    made: Connections = {}
    try:
        for peer in range(rank):
            for kind in (_CONTROL, _DATA):
                made[peer, kind] = _call(rank, peer, kind, addresses[peer], secret, deadline)
        expected = {(peer, kind) for peer in range(rank + 1, len(addresses)) for kind in (_CONTROL, _DATA)}
        made |= _Reception(rank, listener, secret, expected).wait(deadline)
    except BaseException:
        for descriptor in made.values():
            os.close(descriptor)
        raise
    control = {peer: fd for (peer, kind), fd in made.items() if kind == _CONTROL}
    data = {peer: fd for (peer, kind), fd in made.items() if kind == _DATA}
    return control, data


def _proof(
    secret: bytes, side: bytes, introduction: bytes, ours: bytes, theirs: bytes, acceptor: int
) -> bytes:
    return hmac.digest(secret, b"|".join((side, introduction, ours, theirs, b"%d" % acceptor)), "sha256")


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed during the handshake")
        data += part
    return data


def _call(rank: int, peer: int, kind: int, address: tuple[str, int], secret: bytes, deadline: float) -> int:
    try:
        left = max(0.001, deadline - time.monotonic())
        connection = socket.create_connection(address, timeout=left)
        with connection:
            introduction = _INTRODUCTION.pack(_MAGIC, rank, kind)
            mine = secrets.token_bytes(_CHALLENGE)
            connection.sendall(introduction + mine)
            theirs = _receive(connection, _CHALLENGE)
            claimed = _receive(connection, _PROOF)
            expected = _proof(secret, b"accept", introduction, mine, theirs, peer)
            if not hmac.compare_digest(claimed, expected):
                raise ConnectionError("the process at the other end does not know the job's secret")
            connection.sendall(_proof(secret, b"connect", introduction, mine, theirs, peer))
            return _ready(connection)
    except OSError as error:
        raise MeshError(
            f"Rank {rank} could not connect to rank {peer} at {address[0]}:{address[1]}: {error}"
        ) from None


def _ready(connection: socket.socket) -> int:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection.detach()


class _Reception:
    """Takes calls, each shaken hands with on a thread of its own, until all expected ones are in."""

    def __init__(
        self, rank: int, listener: socket.socket, secret: bytes, expected: set[tuple[int, int]]
    ) -> None:
        self._rank = rank
        self._listener = listener
        self._secret = secret
        self._changed = threading.Condition()
        self._awaited = set(expected)  # guarded by _changed
        self._made: Connections = {}  # guarded by _changed
        self._over = False  # guarded by _changed

    def wait(self, deadline: float) -> Connections:
        acceptor = threading.Thread(target=self._accept, name="khorovod-accept", daemon=True)
        if self._awaited:
            acceptor.start()
        with self._changed:
            while self._awaited and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
            self._over = True
            missing = sorted({peer for peer, _ in self._awaited})
        self._listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        if acceptor.ident is not None:
            acceptor.join()
        if missing:
            for descriptor in self._made.values():
                os.close(descriptor)
            raise MeshError(f"Rank {self._rank} waited in vain for connections from rank(s) {missing}.")
        return self._made

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._shake_hands, args=(connection,), daemon=True).start()

    def _shake_hands(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, struct.error):
            connection.settimeout(_HANDSHAKE_SECONDS)
            introduction = _receive(connection, _INTRODUCTION.size)
            magic, peer, kind = _INTRODUCTION.unpack(introduction)
            theirs = _receive(connection, _CHALLENGE)
            with self._changed:
                if magic != _MAGIC or (peer, kind) not in self._awaited:
                    return
            mine = secrets.token_bytes(_CHALLENGE)
            proof = _proof(self._secret, b"accept", introduction, theirs, mine, self._rank)
            connection.sendall(mine + proof)
            expected = _proof(self._secret, b"connect", introduction, theirs, mine, self._rank)
            if not hmac.compare_digest(_receive(connection, _PROOF), expected):
                return
            with self._changed:
                if self._over or (peer, kind) not in self._awaited:
                    return
                self._awaited.discard((peer, kind))
                self._made[peer, kind] = _ready(connection)
                self._changed.notify()
