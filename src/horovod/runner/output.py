"""The ranks' output on its way to the terminal: lines, prefixes, sinks that never block. Bytes only.

Knows nothing about processes or ranks' states.
"""

from __future__ import annotations

import errno
import os
import re
import select
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

__all__ = ["LineSplitter", "Sink", "Tail", "open_sinks", "prefixer", "rank_directory"]

MAX_LINE = 1 << 20
"""A longer line is cut, so that output without line ends cannot fill the memory."""
SINK_LIMIT = 1 << 20
"""Bytes that may wait in a sink before the ranks that feed it are made to wait."""
# poll() promises that this much can be written to a pipe without blocking (Linux: PIPE_BUF).
_WRITE_SIZE = 4096
# Going through the supervisor's loop for each of them would make the launcher the slowest part of a pipe.
_WRITES_AT_ONCE = 64

_LINE_END = re.compile(rb"\r\n|\n|\r")


class LineSplitter:
    r"""Turns chunks into whole lines; ``\n``, ``\r\n`` and ``\r`` (progress bars) end a line and are kept."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes; an empty item is the second half of the last line's end."""
        lines: list[bytes] = []
        if self._after_cr and data.startswith(b"\n"):
            # The line went out with its \r at once, because a progress bar's may be the last for long. An
            # empty item stands for the \n that now completes its line end.
            lines.append(b"")
            data = data[1:]
        start = 0
        for match in _LINE_END.finditer(data):
            lines.append(bytes(self._rest) + data[start : match.end()])
            self._rest.clear()
            start = match.end()
        self._rest += data[start:]
        while len(self._rest) >= MAX_LINE:
            lines.append(bytes(self._rest[:MAX_LINE]) + b"\n")
            del self._rest[:MAX_LINE]
        self._after_cr = data.endswith(b"\r")
        return lines

    def finish(self) -> list[bytes]:
        """What is left at the end, as a line of its own."""
        rest = bytes(self._rest)
        self._rest.clear()
        return [rest + b"\n"] if rest else []


def rank_directory(base: Path, rank: int, size: int) -> Path:
    """Where a rank's output files go; padded with zeros, so that names sort as ranks do."""
    return base / f"rank.{rank:0{len(str(size - 1))}}"


def prefixer(rank: int, stream: str, *, timestamp: bool) -> Callable[[list[bytes]], bytes]:
    """A function that joins lines, each with ``[rank]<stream>:`` in front."""
    label = f"[{rank}]<{stream}>:".encode()

    def join(lines: list[bytes]) -> bytes:
        prefix = time.asctime().encode() + label if timestamp else label
        return b"".join(prefix + line if line else b"\n" for line in lines)

    return join


class Tail:
    """The last lines of a stream, for the failure report."""

    def __init__(self, lines: int = 50, width: int = 2000) -> None:
        self._lines: deque[bytes] = deque(maxlen=lines)
        self._width = width

    def add(self, lines: list[bytes]) -> None:
        """Remember the end of ``lines``."""
        self._lines.extend(line[: self._width] for line in lines[-(self._lines.maxlen or 0) :] if line)

    def text(self) -> list[str]:
        """The lines without their ends, readable whatever bytes they hold."""
        return [line.decode("utf-8", "backslashreplace").rstrip("\r\n") for line in self._lines]


class Sink:
    """A file descriptor that output goes to, without ever blocking on it.

    Whoever owns it calls :meth:`flush_some` when the descriptor is writable. When the reader has gone
    (``| head``), everything is dropped from then on: the job goes on without an audience.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self.problem: str | None = None
        """Why nothing can be written any more; None once that was told."""
        self.holding = False
        """Whether the ranks that feed it are being made to wait."""
        self._chunks: deque[memoryview] = deque()
        self._pending = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def pending(self) -> int:
        """Bytes that wait to be written."""
        return self._pending

    @property
    def full(self) -> bool:
        """Whether whoever feeds this sink should wait."""
        return self._pending >= SINK_LIMIT

    def write(self, data: bytes) -> None:
        """Take whole lines."""
        if data and not self.closed:
            self._chunks.append(memoryview(data))
            self._pending += len(data)

    def flush_some(self) -> None:
        """Write what can be written now, up to a bound; call it only when the descriptor is writable."""
        for _ in range(_WRITES_AT_ONCE):
            if not self._write_piece() or not self._poll.poll(0):
                return

    def _write_piece(self) -> bool:
        """Write one piece; whether more is to be written."""
        if not self._chunks:
            return False
        chunk = self._chunks[0]
        try:
            written = os.write(self.fd, chunk[:_WRITE_SIZE])
        except BlockingIOError:  # somebody has made the descriptor non-blocking
            return False
        except OSError as error:
            gone = error.errno == errno.EPIPE
            self.problem = "nobody reads it any more" if gone else error.strerror
            self.drop()
            return False
        self._pending -= written
        if written == len(chunk):
            self._chunks.popleft()
        else:
            self._chunks[0] = chunk[written:]
        return bool(self._chunks)

    def drop(self) -> None:
        """Give up on this descriptor."""
        self.closed = True
        self._chunks.clear()
        self._pending = 0


def open_sinks(out_fd: int = 1, err_fd: int = 2) -> tuple[Sink, Sink]:
    """Sinks for standard output and error: one and the same when both go to the same place.

    With two queues for one terminal, a piece of an error line could land in the middle of an output line.
    """
    out = Sink(out_fd)
    if os.path.sameopenfile(out_fd, err_fd):
        return out, out
    return out, Sink(err_fd)
