"""The control channel between the driver and one rank: JSON lines over a unix socket.

Peers that use MPI have no stdin of their own and learn their rank late, so commands travel neither by stdin
nor by environment. The channel knows nothing of what is measured.
"""

from __future__ import annotations

import json
import socket
from typing import Any

Message = dict[str, Any]


class ChannelClosed(ConnectionError):
    """The other end has gone."""


class Channel:
    """One end of the connection; `fileno` lets the driver select over many."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._partial = b""
        self._pending: list[Message] = []

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._sock.fileno()

    def send(self, message: Message) -> None:
        """Send one message whole."""
        self._sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message:
        """Block for one message."""
        while not self._pending:
            self._pending = self.drain()
        return self._pending.pop(0)

    def drain(self) -> list[Message]:
        """Read once and return the messages that this completed."""
        chunk = self._sock.recv(1 << 20)
        if not chunk:
            raise ChannelClosed("the other end of the control channel has gone")
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def connect(path: str) -> Channel:
    """Connect to the driver that listens at `path`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return Channel(sock)
