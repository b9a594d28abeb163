"""A world: the running ranks of one peer, started and ended by the driver, with a deadline on every wait."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

from benchmarks import ROOT
from benchmarks.cases import Result
from benchmarks.control import Channel, ChannelClosed, Message
from benchmarks.peers import Job
from benchmarks.peers.base import Command

START_SECONDS = 90.0
LEAVE_SECONDS = 10.0
LOG_LINES = 12


class WorldFailed(Exception):
    """A rank crashed, answered with an error, or let a deadline pass."""


class Asked(Protocol):
    """What ranks are asked to do: a dataclass, known to the worker by its kind."""

    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


class Launched(Protocol):
    """Whose ranks a world has."""

    name: str

    def launch(self, job: Job) -> list[Command]:
        """Return the processes that make up one world."""


class World:
    """`size` ranks of `peer`, waiting for cases without using a core."""

    def __init__(
        self,
        peer: Launched,
        size: int,
        worker: str = "benchmarks.worker",
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.peer, self.size, self._worker, self._start_seconds = peer, size, worker, start_seconds
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._directory = Path(tempfile.mkdtemp(prefix="khorovod-bench-", dir=memory))
        self._log = (self._directory / "log").open("wb")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: dict[int, Channel] = {}
        self.pids: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    def run(self, case: Asked, seconds: float) -> list[Result]:
        """Run the case on all ranks and return their results by rank."""
        for channel in self._channels.values():
            self._send(channel, {"case": case.kind, "parameters": asdict(case)})
        results: dict[int, Result] = {}
        waiting: set[int] = set()
        deadline = time.monotonic() + seconds
        while len(results) < self.size:
            for rank, message in self._messages(deadline, f"{case} on {self.size} ranks"):
                if "error" in message:
                    raise WorldFailed(f"{self.peer.name} rank {rank}: {message['error'].strip()}")
                if "ready" in message:
                    waiting.add(rank)
                else:
                    results[rank] = message["result"]
            if len(waiting) == self.size:
                waiting.clear()
                for channel in self._channels.values():
                    self._send(channel, {"go": True})
        return [results[rank] for rank in range(self.size)]

    def close(self) -> None:
        """Let the ranks leave in peace; end those that do not."""
        with contextlib.suppress(WorldFailed, subprocess.TimeoutExpired):
            for channel in self._channels.values():
                self._send(channel, {"case": "exit"})
            deadline = time.monotonic() + LEAVE_SECONDS
            for process in self._processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End every process of this world, by the pidfds and process groups that it made itself."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for descriptor in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        for process in self._processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(3)
        for channel in self._channels.values():
            channel.close()
        self._pidfds, self._channels, self._processes = {}, {}, []
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listener:
            listener.bind(str(self._directory / "control"))
            listener.listen(self.size)
            listener.settimeout(0.1)
            directory = str(self._directory)
            worker = ("-m", self._worker, "--peer", self.peer.name, "--directory", directory)
            job = Job(self.size, directory, (*worker, "--driver", str(os.getpid())))
            for command in self.peer.launch(job):
                process = subprocess.Popen(
                    command.argv,
                    env=command.env,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    start_new_session=True,
                )
                self._processes.append(process)
            self._accept(listener, time.monotonic() + self._start_seconds)

    def _accept(self, listener: socket.socket, deadline: float) -> None:
        while len(self._channels) < self.size:
            self._fail_if_gone()
            if time.monotonic() > deadline:
                here = f"only {len(self._channels)} of {self.size} ranks"
                raise self._failure(f"{here} in {self._start_seconds} s")
            with contextlib.suppress(TimeoutError):
                sock, _ = listener.accept()
                sock.settimeout(LEAVE_SECONDS)
                channel = Channel(sock)
                hello = channel.receive()
                sock.settimeout(None)
                if hello["size"] != self.size:
                    raise self._failure(f"a rank found a world of {hello['size']}, not {self.size}")
                self._channels[hello["rank"]] = channel
                self.pids[hello["rank"]] = hello["pid"]
                self._pidfds[hello["rank"]] = os.pidfd_open(hello["pid"])

    def _messages(self, deadline: float, what: str) -> list[tuple[int, Message]]:
        with selectors.DefaultSelector() as selector:
            for rank, channel in self._channels.items():
                selector.register(channel, selectors.EVENT_READ, rank)
            while not (events := selector.select(0.2)):
                self._fail_if_gone()
                if time.monotonic() > deadline:
                    raise self._failure(f"no answer in time to {what}")
            return [(key.data, message) for key, _ in events for message in self._drain(key.data)]

    def _drain(self, rank: int) -> list[Message]:
        try:
            return self._channels[rank].drain()
        except (ChannelClosed, ConnectionError) as error:
            raise self._failure(f"rank {rank} has gone") from error

    def _send(self, channel: Channel, message: Message) -> None:
        try:
            channel.send(message)
        except OSError as error:
            raise self._failure("a rank has gone") from error

    def _fail_if_gone(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise self._failure(f"a process ended with code {process.returncode}")

    def _failure(self, what: str) -> WorldFailed:
        self._log.flush()
        lines = (self._directory / "log").read_text(errors="replace").splitlines()[-LOG_LINES:]
        return WorldFailed("\n".join([f"{self.peer.name}: {what}", *lines]))
