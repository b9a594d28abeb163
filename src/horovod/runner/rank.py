"""One rank as the supervisor sees it: its channels, its two streams of output, and how it ended.

Knows nothing about other ranks or about what should happen next.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from horovod.runner.guardian import StatusEvent, parse_status
from horovod.runner.hosts import is_local
from horovod.runner.launch import Channels, Worker
from horovod.runner.output import LineSplitter, Sink, Tail, prefixer
from horovod.runner.report import RankOutcome

__all__ = ["Rank", "Stream"]

_CHUNK = 1 << 16


class Stream:
    """Standard output or error of one rank: prefixed lines to a sink, raw bytes to a file if wanted."""

    def __init__(
        self,
        fd: int,
        sink: Sink,
        rank: int,
        name: str,
        *,
        timestamp: bool,
        file: Path | None,
        warn: Callable[[str], None],
    ) -> None:
        self.fd = fd
        self.sink = sink
        self.open = True
        self.tail = Tail()
        self._splitter = LineSplitter()
        self._join = prefixer(rank, name, timestamp=timestamp)
        self._warn = warn
        self._file: FileIO | None = None
        if file is not None:
            self._file = file.open("wb", buffering=0)

    def read_some(self) -> bool:
        """Pass on what has come; False at the end. Call it only when the descriptor is readable."""
        data = os.read(self.fd, _CHUNK)
        if data:
            self._write_file(data)
            self._pass_on(self._splitter.feed(data))
        return bool(data)

    def say(self, text: str) -> None:
        """A line in the rank's name that it could not write itself."""
        self._pass_on([text.encode("utf-8", "surrogateescape") + b"\n"])

    def close(self) -> None:
        """Pass on an unfinished last line, and let go of the descriptor."""
        self._pass_on(self._splitter.finish())
        self.open = False
        os.close(self.fd)
        self._close_file()

    def _pass_on(self, lines: list[bytes]) -> None:
        self.tail.add(lines)
        self.sink.write(self._join(lines))

    def _write_file(self, data: bytes) -> None:
        if self._file is None:
            return
        rest = memoryview(data)
        try:
            while rest:  # where the disk ends, only a part is taken, and the next call says why
                rest = rest[self._file.write(rest) :]
        except OSError as error:  # a full disk must not end a training run
            self._give_up_file(error)

    def _close_file(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:  # some file systems tell only now
                self._give_up_file(error)

    def _give_up_file(self, error: OSError) -> None:
        file, self._file = self._file, None
        assert file is not None
        self._warn(f"cannot write {file.name}: {error.strerror}; this file ends here, the job goes on")
        with contextlib.suppress(OSError):
            file.close()


@dataclass
class Rank:
    """A started rank."""

    worker: Worker
    channels: Channels
    stdout: Stream
    stderr: Stream
    pid: int = 0
    guarded: bool = True
    """Its guardian still lives."""
    guardian_lost: bool = False
    """Its guardian ended without a word."""
    wait_status: int | None = None
    ended_at: float = 0.0
    _status: bytearray = field(default_factory=bytearray)

    @property
    def number(self) -> int:
        """The rank's rank."""
        return self.worker.slot.rank

    @property
    def failed(self) -> bool:
        """It has ended, and not well."""
        return bool(self.wait_status)

    def read_status(self, now: float) -> bool:
        """Take in what the guardian tells; True when it has ended. Call it only when the pipe is readable."""
        data = os.read(self.channels.status, _CHUNK)
        self._status += data
        while (end := self._status.find(b"\n")) >= 0:
            self._take(parse_status(bytes(self._status[:end])))
            del self._status[: end + 1]
        if not data and self.wait_status is None:
            # The guardian was killed, and the kernel has killed the rank with it.
            self.guardian_lost = True
            self.wait_status, self.ended_at = signal.SIGKILL, now
            self.stderr.say("horovodrun: the guardian process of this rank was killed")
        return not data

    def _take(self, event: StatusEvent) -> None:
        if event.kind == "started":
            self.pid = event.value
        elif event.kind == "exec-failed":
            self.stderr.say(f"horovodrun: cannot execute {self.worker.argv[0]}: {os.strerror(event.value)}")
        elif event.kind == "exited":
            self.wait_status, self.ended_at = event.value, event.at

    def let_go(self) -> None:
        """Free what belongs to the guardian, which has ended."""
        self.guarded = False
        os.close(self.channels.status)
        os.close(self.channels.control)
        self.channels.reap()

    def send(self, signum: int) -> None:
        """Ask the guardian to deliver a signal."""
        if self.guarded:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.channels.control, bytes([signum]))

    def outcome(self, *, bereaved: bool) -> RankOutcome:
        """How it ended, for the report; ``bereaved``: it had lost another rank before."""
        assert self.wait_status is not None
        code = os.waitstatus_to_exitcode(self.wait_status)
        # "localhost" says little in a log file that was collected from somewhere.
        host = os.uname().nodename if is_local(self.worker.slot.host) else self.worker.slot.host
        tail = self.stderr.tail.text()
        return RankOutcome(self.number, host, self.pid, code, self.ended_at, tail, bereaved)
