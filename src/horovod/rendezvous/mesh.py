"""Socket connections between every two ranks, for worlds that share no memory.

Each pair gets two TCP connections, one for control and one for data. Both ends prove that they know the job's
secret, by HMAC over both sides' random challenges, before a byte is taken from them; a stranger on the port
learns nothing and delays nobody.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from horovod.rendezvous.limits import explain
from horovod.rendezvous.strangers import Strangers

_CHALLENGE = 32
_PROOF = 32
_WELCOME = b"\x01"
_INTRODUCTION = struct.Struct("!4sIB")  # magic, rank of the connecting side, kind
_MAGIC = b"KHO1"
_CONTROL, _DATA = 0, 1
_HANDSHAKE_SECONDS = 5.0
_MOST_STRANGERS = 128

Connections = dict[tuple[int, int], int]  # (rank, kind) -> descriptor


class MeshError(Exception):
    """The connections could not be made in time."""


class _WrongProof(Exception):
    """The other end does not know the secret: trying again is no use."""


def listen() -> socket.socket:
    """A listener on loopback, at a free port."""
    return socket.create_server(("127.0.0.1", 0), backlog=256)


def connect(
    rank: int,
    addresses: Mapping[int, tuple[str, int]],
    listener: socket.socket,
    secret: bytes,
    timeout: float,
    trouble: Callable[[], str] = str,
) -> tuple[dict[int, int], dict[int, int]]:
    """Connects to every lower rank, waits for every higher one; control and data descriptors, by rank.

    While it waits, ``trouble`` is asked why that may be in vain; an answer ends it.
    """
    deadline = time.monotonic() + timeout
    made: Connections = {}
    try:
        for peer in range(rank):
            for kind in (_CONTROL, _DATA):
                made[peer, kind] = _call(rank, peer, kind, addresses[peer], secret, deadline)
        expected = {(peer, kind) for peer in range(rank + 1, len(addresses)) for kind in (_CONTROL, _DATA)}
        made |= _Reception(rank, listener, secret, expected).wait(deadline, trouble)
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


def _ready(connection: socket.socket) -> int:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection.detach()


# -- The side that connects


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection was closed during the handshake")
        data += part
    return data


def _call(rank: int, peer: int, kind: int, address: tuple[str, int], secret: bytes, deadline: float) -> int:
    """One connection. Whoever is crowded out by strangers at the other door comes back."""
    while True:
        problem: Exception
        try:
            return _call_once(rank, peer, kind, address, secret, deadline)
        except (ConnectionResetError, BrokenPipeError) as error:
            problem = error
        except _WrongProof as error:
            raise _failed(rank, peer, address, str(error)) from None
        except OSError as error:
            raise _failed(rank, peer, address, explain(error)) from None
        if time.monotonic() >= deadline:
            raise _failed(rank, peer, address, str(problem)) from None
        time.sleep(0.01)


def _failed(rank: int, peer: int, address: tuple[str, int], why: str) -> MeshError:
    return MeshError(f"Rank {rank} could not connect to rank {peer} at {address[0]}:{address[1]}: {why}")


def _call_once(
    rank: int, peer: int, kind: int, address: tuple[str, int], secret: bytes, deadline: float
) -> int:
    left = max(0.001, deadline - time.monotonic())
    with socket.create_connection(address, timeout=left) as connection:
        introduction = _INTRODUCTION.pack(_MAGIC, rank, kind)
        mine = secrets.token_bytes(_CHALLENGE)
        connection.sendall(introduction + mine)
        theirs = _receive(connection, _CHALLENGE)
        claimed = _receive(connection, _PROOF)
        expected = _proof(secret, b"accept", introduction, mine, theirs, peer)
        if not hmac.compare_digest(claimed, expected):
            raise _WrongProof("the process at the other end does not know the job's secret")
        connection.sendall(_proof(secret, b"connect", introduction, mine, theirs, peer))
        _receive(connection, len(_WELCOME))
        return _ready(connection)


# -- The side that listens


class _Caller:
    """A connection that has not proven anything yet."""

    def __init__(self, connection: socket.socket, address: tuple[str, int]) -> None:
        self.connection = connection
        self.name = f"{address[0]}:{address[1]}"
        self.until = time.monotonic() + _HANDSHAKE_SECONDS
        self.wanted = _INTRODUCTION.size + _CHALLENGE
        self.data = b""
        self.line: tuple[int, int] | None = None  # the rank and kind that it says it is
        self.expected = b""

    def read(self) -> bool:
        """Whether all that is wanted is here; ``OSError`` if nothing more will come."""
        part = self.connection.recv(self.wanted - len(self.data))
        if not part:
            raise ConnectionResetError("it went away")
        self.data += part
        return len(self.data) == self.wanted


class _Reception:
    """Takes calls, all at once, until those that are expected are in; a stranger has little time."""

    def __init__(
        self, rank: int, listener: socket.socket, secret: bytes, expected: set[tuple[int, int]]
    ) -> None:
        self._rank = rank
        self._listener = listener
        self._secret = secret
        self._awaited = set(expected)
        self._made: Connections = {}
        self._callers: dict[socket.socket, _Caller] = {}  # the oldest first
        self._selector = selectors.PollSelector()
        self._strangers = Strangers(f"port {listener.getsockname()[1]} of rank {rank}")

    def wait(self, deadline: float, trouble: Callable[[], str]) -> Connections:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while self._awaited and time.monotonic() < deadline:
                if problem := trouble():
                    raise MeshError(problem)
                for key, _ in self._selector.select(min(0.5, max(0.0, deadline - time.monotonic()))):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._hear(key.data)
                self._drop_late()
            if self._awaited:
                missing = sorted({peer for peer, _ in self._awaited})
                raise MeshError(f"Rank {self._rank} waited in vain for connections from rank(s) {missing}.")
            return self._made
        except BaseException:
            for descriptor in self._made.values():
                os.close(descriptor)
            raise
        finally:
            for caller in list(self._callers.values()):
                self._drop(caller, "it was not expected")
            self._selector.close()
            self._strangers.sum_up()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._callers:
                raise MeshError(f"Rank {self._rank} cannot take connections: {explain(error)}") from None
            self._drop(next(iter(self._callers.values())), "there are too many")
            return
        connection.setblocking(False)
        caller = self._callers[connection] = _Caller(connection, address)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        if len(self._callers) > _MOST_STRANGERS:
            self._drop(next(iter(self._callers.values())), "there are too many")

    def _hear(self, caller: _Caller) -> None:
        if caller.connection not in self._callers:
            return  # dropped in this round
        try:
            if not caller.read():
                return
            problem = self._challenge(caller) if caller.line is None else self._admit(caller)
        except BlockingIOError:
            return
        except OSError as error:
            problem = str(error)
        if problem:
            self._drop(caller, problem)

    def _challenge(self, caller: _Caller) -> str:
        """Looks at the introduction and answers with a challenge; "" or why not."""
        introduction, theirs = caller.data[: _INTRODUCTION.size], caller.data[_INTRODUCTION.size :]
        magic, peer, kind = _INTRODUCTION.unpack(introduction)
        if magic != _MAGIC or (peer, kind) not in self._awaited:
            return "nobody like that is expected"
        mine = secrets.token_bytes(_CHALLENGE)
        caller.connection.sendall(
            mine + _proof(self._secret, b"accept", introduction, theirs, mine, self._rank)
        )
        caller.line = peer, kind
        caller.expected = _proof(self._secret, b"connect", introduction, theirs, mine, self._rank)
        caller.data, caller.wanted = b"", _PROOF
        return ""

    def _admit(self, caller: _Caller) -> str:
        if not hmac.compare_digest(caller.data, caller.expected):
            return "it does not know the job's secret"
        if caller.line is None or caller.line not in self._awaited:
            return "it came twice"
        caller.connection.sendall(_WELCOME)
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]
        self._awaited.discard(caller.line)
        self._made[caller.line] = _ready(caller.connection)
        return ""

    def _drop(self, caller: _Caller, why: str) -> None:
        self._strangers.turn_away(caller.name, why)
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]
        with suppress(OSError):
            caller.connection.close()

    def _drop_late(self) -> None:
        now = time.monotonic()
        for caller in [one for one in self._callers.values() if one.until <= now]:
            self._drop(caller, f"it proved nothing in {_HANDSHAKE_SECONDS:g} s")
