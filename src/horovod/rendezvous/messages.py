"""The messages of the meeting at ``init()``, and the socket they travel on.

A message is a tagged JSON object in one packet of a unix ``SOCK_SEQPACKET`` connection, with descriptors
beside it. The kernel vouches for the peer's user before anything it sent is looked at; what does not fit
the declared types is refused by the decoder.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from horovod.rendezvous.limits import explain, open_files

MAX_BYTES = 1 << 17
MAX_DESCRIPTORS = 250  # the kernel passes at most 253 with one message
SEND_SECONDS = 10.0
LAST_SECONDS = 2.0  # for a last word


class Hello(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """A rank comes in; its eventfd is beside the message. With a problem: it cannot take part."""

    rank: int
    size: int
    host: str
    version: str
    plane: str
    problem: str = ""


class Refusal(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """No world for this rank, and why; from a rank: none for anybody."""

    reason: str


class Member(msgspec.Struct, forbid_unknown_fields=True):
    """One rank of the roster; the host and pid are for messages to people."""

    rank: int
    host: str
    pid: int
    has_pidfd: bool


class Roster(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Everybody is here. Beside it: the region (if offered), the eventfds by rank, the pidfds there are."""

    members: list[Member]
    region_nonce: str
    key: str = ""
    """Known to the ranks of this world alone."""


class Ready(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What the rank made of the roster: the nonce it read from the region, or why it could not."""

    region_nonce: str
    problem: str = ""


class UseSharedMemory(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Every rank sees the same memory: go."""


class UseSockets(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Some rank does not share the memory: open a listener and say where."""

    reason: str
    secret: str


class Listening(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Where a rank waits for connections."""

    address: str
    port: int


class Addresses(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Where every rank waits, by rank."""

    listeners: list[Listening]


class Started(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The rank has all that it needs; from rank 0: everybody has, go."""


Message = Hello | Refusal | Roster | Ready | UseSharedMemory | UseSockets | Listening | Addresses | Started
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class ChannelError(Exception):
    """The other side ended the connection, is somebody else, or talks nonsense."""


class ChannelClosedError(ChannelError):
    """The other side ended the connection."""


class NoRoomError(ChannelError):
    """This process cannot have more descriptors: the other side is not to blame."""


Incoming = TypeVar("Incoming")


class Packets(Generic[Incoming]):
    """One end of a connection between two processes of the same user on one machine.

    ``decoder`` knows the messages that may come in.
    """

    def __init__(self, sock: socket.socket, decoder: msgspec.json.Decoder[Incoming]) -> None:
        self._socket = sock
        self._decoder = decoder
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.peer_pid: int = pid
        if uid != os.getuid():
            sock.close()
            raise ChannelError(
                f"the process at the other end (pid {pid}) belongs to another user (uid {uid})"
            )

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Sends one message; a peer that is gone, or does not read, raises ``ChannelError``."""
        data = msgspec.json.encode(message)
        self._socket.settimeout(SEND_SECONDS)
        end = time.monotonic() + SEND_SECONDS
        while True:
            try:
                socket.send_fds(self._socket, [data], list(descriptors), socket.MSG_NOSIGNAL)
                return
            except TimeoutError:
                raise ChannelError("the other side does not read what it is sent") from None
            except OSError as error:
                # A user may have only so many descriptors on their way: others are taking theirs now.
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > end:
                    raise ChannelError(f"the connection broke ({explain(error)})") from None
            time.sleep(0.005)

    def receive(
        self, timeout: float | None = None, most: int = MAX_DESCRIPTORS
    ) -> tuple[Incoming, list[int]]:
        """One message and its descriptors, which the caller owns. ``TimeoutError`` if none comes."""
        self._socket.settimeout(timeout)
        try:
            data, descriptors, flags, _ = socket.recv_fds(
                self._socket, MAX_BYTES, most, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelError(f"the connection broke ({explain(error)})") from None
        try:
            if not data:
                raise ChannelClosedError("the other side closed the connection")
            if flags & socket.MSG_TRUNC:
                raise ChannelError("a message was too long")
            if flags & socket.MSG_CTRUNC:
                if len(descriptors) < most:
                    raise NoRoomError(f"no room for the descriptors of a message: {open_files()}")
                raise ChannelError("a message came with too many descriptors")
            return self._decoder.decode(data), descriptors
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ChannelError) as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if isinstance(error, ChannelError):
                raise
            raise ChannelError(str(error)) from None

    def detach(self) -> int:
        """Gives the descriptor away."""
        return self._socket.detach()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


class Channel(Packets[Message]):
    """A connection between two ranks, for the meeting's messages."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _decoder)

    def trouble(self) -> str:
        """Without taking anything: why the other side will not go on; "" if nothing speaks against it."""
        self._socket.settimeout(0)
        try:
            data = self._socket.recv(MAX_BYTES, socket.MSG_PEEK)
            if not data:
                return "the other side closed the connection"
            message = _decoder.decode(data)
        except BlockingIOError:
            return ""
        except OSError as error:
            return f"the connection broke ({explain(error)})"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return str(error)
        return message.reason if isinstance(message, Refusal) else ""

    def refuse(self, reason: str) -> None:
        """Says a last word."""
        with suppress(ChannelError, OSError):
            self.send(Refusal(reason))
            self._socket.shutdown(socket.SHUT_WR)

    def drain(self, until: float) -> None:
        """Reads, at most until then, what nobody wants: closing before that would take the last word back."""
        with suppress(OSError):
            while (left := until - time.monotonic()) > 0:
                self._socket.settimeout(left)
                data, descriptors, _, _ = socket.recv_fds(self._socket, MAX_BYTES, MAX_DESCRIPTORS)
                for descriptor in descriptors:
                    os.close(descriptor)
                if not data:
                    return
