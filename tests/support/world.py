"""Worlds of worker processes that stay up and run one case after another.

A case is a function, sent by value, that every rank calls. A case that raises, leaves an operation pending or
does not end in time costs its world: the processes are killed and the next test gets fresh ones.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tests.support import frames, mpi, worker
from tests.support.nursery import ROOT, STRICT, Forked, Nursery, Prepare

PLANES = ("shm", "tcp")
"""The data planes under test: add "tcp" here to run everything on both."""

MAX_PROCESSES = 8
CASE_SECONDS = 40.0
GRACE_SECONDS = 5.0


class RemoteError(AssertionError):
    """A case failed on some rank; the message has the rank and its traceback."""


class WorldKey(NamedTuple):
    """What distinguishes worlds."""

    size: int
    plane: str
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.plane, str(self.size), *(f"{name}={value}" for name, value in self.settings)])


def rank_environment(rank: int, size: int, plane: str, job: str) -> dict[str, str]:
    """The variables that make a process rank ``rank`` of ``size`` on one host."""
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_JOB_ID": job,
        "HOROVOD_CPU_OPERATIONS": plane,
    }


def clean_environment() -> dict[str, str]:
    """This process's environment without a word about ranks, and able to import the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    return {**kept, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


class Workers:
    """Some worker processes, which know nothing of each other yet."""

    def __init__(self, environments: Sequence[Mapping[str, str]], nursery: Nursery | None = None) -> None:
        self.prepared = nursery.prepared if nursery is not None else frozenset()
        self._nursery = nursery
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        self._connections: list[socket.socket] = []
        try:
            for environment in environments:
                self._start(environment)
        except BaseException:
            self.kill()
            raise

    def _start(self, environment: Mapping[str, str]) -> None:
        mine, theirs = socket.socketpair()
        self._connections.append(mine)
        environment = {**clean_environment(), **environment}
        with theirs:
            if self._nursery is not None:
                pid = self._nursery.fork(worker.born, environment, given=[theirs])
                self._processes.append(Forked(self._nursery, pid))
                return
            command = [sys.executable, *STRICT, "-m", "tests.support.worker"]
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
        self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """The processes, by rank."""
        return [process.pid for process in self._processes]

    @property
    def alive(self) -> bool:
        """Whether all of them are up."""
        return bool(self._processes) and all(process.poll() is None for process in self._processes)

    def is_prepared(self, prepare: Prepare | None) -> bool:
        """Whether this has been called where the processes come from."""
        return prepare is None or prepare.__qualname__ in self.prepared

    def run(self, case: Callable[..., Any], *args: Any, deadline: float = CASE_SECONDS) -> list[Any]:
        """Calls ``case(*args)`` in every process; the results by rank, or ``RemoteError``."""
        try:
            frames.by_value(case)
            for connection in self._connections:
                frames.send(connection, (case, args))
            return self._collect(deadline)
        except BaseException:
            self.kill()
            raise

    def _collect(self, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        problems: dict[int, str] = {}
        end = time.monotonic() + deadline
        with selectors.DefaultSelector() as selector:
            for rank, connection in enumerate(self._connections):
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map() and (ready := selector.select(max(0.0, end - time.monotonic()))):
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    self._read(key.data, end, results, problems)
                    if problems:  # the others may wait for the one that failed
                        end = min(end, time.monotonic() + GRACE_SECONDS)
            silent = sorted(key.data for key in selector.get_map().values())
        if problems or silent:
            raise RemoteError(_describe(problems, silent, deadline))
        return [results[rank] for rank in range(len(self._connections))]

    def _read(self, rank: int, end: float, results: dict[int, Any], problems: dict[int, str]) -> None:
        connection = self._connections[rank]
        connection.settimeout(max(1.0, end - time.monotonic()))
        try:
            kind, value = frames.receive(connection)
            (results if kind == "result" else problems)[rank] = value
        except (EOFError, OSError):
            problems[rank] = self._how_it_ended(rank)
        finally:
            connection.settimeout(None)

    def _how_it_ended(self, rank: int) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._processes[rank].wait(1.0)
        return f"the process ended, exit status {self._processes[rank].poll()}"

    def kill(self) -> None:
        """Ends all processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._connections, self._processes = [], []


class MpirunWorkers(Workers):
    """Worker processes that ``mpirun`` starts. They call back: it passes on no descriptors."""

    def __init__(self, name: str, size: int, settings: Mapping[str, str]) -> None:
        super().__init__([])
        self._pids: list[int] = []
        place = f"khorovod-test-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{place}")
            listener.listen(size)
            listener.settimeout(CASE_SECONDS)
            command = [sys.executable, *STRICT, "-m", "tests.support.worker"]
            self._mpirun = subprocess.Popen(
                [*mpi.mpirun(name, size), *command, "--call", place],
                env={
                    **clean_environment(),
                    **mpi.environment(name),
                    "HOROVOD_CPU_OPERATIONS": "mpi",
                    **settings,
                },
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
            try:
                self._welcome(listener, size)
            except BaseException:
                self.kill()
                raise

    def _welcome(self, listener: socket.socket, size: int) -> None:
        callers: dict[int, tuple[socket.socket, int]] = {}
        while len(callers) < size:
            connection, _ = listener.accept()
            connection.settimeout(None)
            rank, pid = frames.receive(connection)
            callers[rank] = connection, pid
        self._connections = [callers[rank][0] for rank in range(size)]
        self._pids = [callers[rank][1] for rank in range(size)]

    @property
    def pids(self) -> list[int]:
        """The processes, by rank."""
        return self._pids

    @property
    def alive(self) -> bool:
        """Whether all of them are up: ``mpirun`` ends when one ends."""
        return bool(self._pids) and self._mpirun.poll() is None

    def _how_it_ended(self, rank: int) -> str:
        return f"the process {self._pids[rank]} ended"

    def kill(self) -> None:
        """Ends all processes; ``mpirun`` cleans up after them."""
        super().kill()
        for pid in self._pids if self._mpirun.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._pids = []
        try:
            self._mpirun.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._mpirun.kill()
            self._mpirun.wait()


def _describe(problems: Mapping[int, str], silent: Sequence[int], deadline: float) -> str:
    lines = [f"on rank {rank}:\n{text}" for rank, text in problems.items()]
    if silent:
        lines.append(f"no answer from rank(s) {', '.join(map(str, silent))} (deadline {deadline:g} s)")
    return "\n".join(lines)


class Worlds:
    """The worlds that are up, at most ``MAX_PROCESSES`` processes; the least recently used goes first."""

    def __init__(self) -> None:
        self._worlds: OrderedDict[WorldKey, Workers] = OrderedDict()
        self._nurseries: dict[tuple[tuple[str, str], ...], Nursery] = {}

    def get(self, key: WorldKey, prepare: Prepare | None = None) -> Workers:
        """An initialised world, prepared; the same as last time, if it is still well."""
        world = self._worlds.pop(key, None)
        if world is None or not world.alive or not world.is_prepared(prepare):
            if world is not None:
                world.kill()
            self._make_room(key.size)
            world = self._born(key, prepare)
        self._worlds[key] = world
        return world

    def _born(self, key: WorldKey, prepare: Prepare | None) -> Workers:
        settings = dict(key.settings)
        world = workers(key.size, key.plane, settings, self.nursery(settings, prepare))
        world.run(_init)
        return world

    def nursery(self, settings: Mapping[str, str], prepare: Prepare | None) -> Nursery:
        """Frameworks read variables when they are imported, so it has those of the world."""
        theirs = tuple(pair for pair in settings.items() if not pair[0].startswith("HOROVOD_"))
        if theirs not in self._nurseries:
            self._nurseries[theirs] = Nursery({**clean_environment(), **dict(theirs)})
        if prepare is not None:
            self._nurseries[theirs].prepare(prepare)
        return self._nurseries[theirs]

    def _make_room(self, size: int) -> None:
        while self._worlds and size + sum(key.size for key in self._worlds) > MAX_PROCESSES:
            _, oldest = self._worlds.popitem(last=False)
            oldest.kill()

    def close(self) -> None:
        """Ends all worlds."""
        for world in self._worlds.values():
            world.kill()
        self._worlds.clear()
        for nursery in self._nurseries.values():
            nursery.close()
        self._nurseries.clear()


def workers(
    size: int,
    plane: str = PLANES[0],
    settings: Mapping[str, str] | None = None,
    nursery: Nursery | None = None,
) -> Workers:
    """Processes with the environment of a world, that have not called ``init()``; mpirun starts its own."""
    if plane in mpi.MPIS:
        return MpirunWorkers(plane, size, settings or {})
    job = secrets.token_hex(8)
    environments = [{**rank_environment(rank, size, plane, job), **(settings or {})} for rank in range(size)]
    return Workers(environments, nursery)


def _init() -> None:
    import horovod.numpy as hvd

    hvd.init()
