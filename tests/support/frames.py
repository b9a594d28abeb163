"""Pickled messages with a length in front, between the tests and their worker processes."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

_LENGTH = struct.Struct("!Q")


def by_value(function: Callable[..., Any]) -> None:
    """Sends the function with its code. Test modules import pytest: workers need not."""
    if function.__module__.rpartition(".")[2].startswith("test_"):
        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])


def send(connection: socket.socket, message: Any) -> None:
    """Sends one object."""
    data = cloudpickle.dumps(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """The next object; ``EOFError`` when the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return cloudpickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
