"""A worker process of a test world: runs one case after another until its test process is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Literal

from tests.support import frames

Reply = tuple[Literal["result", "error"], Any]

unraisable: list[str] = []
"""Errors that Python could raise nowhere; who provokes some takes them with :func:`take_unraisable`."""


def take_unraisable() -> list[str]:
    """The recorded errors, which are forgotten."""
    taken = unraisable[:]
    unraisable.clear()
    return taken


def _record(event: Any) -> None:
    unraisable.append(f"{event.exc_type.__name__}: {event.exc_value}")


def die_with(parent: int) -> None:
    """Ends this process with the one that started it."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the test process is gone")


def _leftovers() -> str:
    """What a well-behaved case has not left behind."""
    import horovod.numpy as hvd

    if unraisable:
        return f"unraisable errors: {take_unraisable()}"
    if not hvd.is_initialized():
        return ""
    counters = hvd.counters()
    pending = counters["submitted"] - counters["completed"] - counters["failed"]
    return f"{pending} operation(s) left pending: {counters}" if pending else ""


def _run_case(connection: socket.socket) -> Reply:
    case, args = frames.receive(connection)
    try:
        result = case(*args)
        if problem := _leftovers():
            return "error", f"AssertionError: {problem}"
        return "result", result
    except BaseException:
        return "error", traceback.format_exc()


def main(descriptor: int, parent: int) -> None:
    """Serves the test process at the other end of ``descriptor``."""
    die_with(parent)
    with socket.socket(fileno=descriptor) as connection:
        serve(connection)


def born(environment: Mapping[str, str], descriptor: int) -> None:
    """In a child of a nursery: the same."""
    os.environ.clear()
    os.environ.update(environment)
    if "numpy" in sys.modules:  # Python's own random numbers differ after a fork
        sys.modules["numpy"].random.seed()
    with socket.socket(fileno=descriptor) as connection:
        serve(connection)


def call(place: str) -> None:
    """Serves the test process that listens there; for ranks that ``mpirun`` has started."""
    die_with(os.getppid())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{place}")
        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
        frames.send(connection, (int(rank), os.getpid()))
        serve(connection)


def serve(connection: socket.socket) -> None:
    """Runs cases until the other end is gone."""
    sys.unraisablehook = _record
    while True:
        try:
            frames.send(connection, _run_case(connection))
        except (EOFError, OSError):
            return


if __name__ == "__main__":
    # As the module that cases import, not as __main__: its state must exist once.
    from tests.support import worker

    if sys.argv[1] == "--call":
        worker.call(sys.argv[2])
    else:
        worker.main(int(sys.argv[1]), int(sys.argv[2]))
