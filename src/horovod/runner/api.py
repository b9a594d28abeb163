"""``horovod.run``: a function on many ranks, from Python and from notebooks.

The job is a ``horovodrun`` (or ``mpirun``) of its own, so that nothing that happens to the ranks can hurt the
caller: no signal handler, thread or child of theirs lives in its process. Their output is passed on to the
caller's ``sys.stdout`` and ``sys.stderr``, which in a notebook are no files.
"""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from horovod._forms import number
from horovod.runner.environment import CALLER
from horovod.runner.errors import WorkerFailedError
from horovod.runner.handover import VARIABLE, Call, Failure, Handover, Success
from horovod.runner.hosts import parse_hosts, read_hostfile
from horovod.runner.launch.mpirun import find_mpirun
from horovod.runner.placement import place_here

__all__ = ["run"]

INTERRUPT_SECONDS = 15.0
"""How long an interrupted job may take to end; the launcher's own patience is shorter."""
_TAIL_LINES = 20


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | os.PathLike[str] | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls ``func(*args, **kwargs)`` on ``num_proc`` ranks; returns the results by rank.

    The function may be a lambda, a closure or a notebook's: it is sent by value. If it raises on a rank, the
    job ends and :class:`~horovod.runner.errors.WorkerFailedError` (a ``RuntimeError``) is raised here, with
    the rank and its traceback; its cause is the rank's exception, where that can be had.

    Args:
        func, args, kwargs: what to call.
        num_proc: how many ranks (default 1). ``np`` is its old name.
        hosts, hostfile: where; this version knows this machine only.
        start_timeout: seconds in which all ranks must have come to ``hvd.init()``.
        output_filename: a directory for the ranks' output, a file each, beside showing it.
        verbose: say what the launcher does.
        use_mpi, use_gloo: start the ranks by ``mpirun``, with ``mpi_args``; by ``horovodrun``, the default.
        executable: the Python of the ranks (default: this one).
        disable_cache, ssh_port, ssh_identity_file, network_interface, network_interfaces: accepted; there is
            nothing here that they would change.
    """
    del disable_cache, ssh_port, ssh_identity_file, network_interfaces
    if network_interface is not None:
        _deprecated("network_interface", "network_interfaces")
    ranks = _renamed("np", np, "num_proc", num_proc)
    elastic = {
        "min_num_proc": _renamed("min_np", min_np, "min_num_proc", min_num_proc),
        "max_num_proc": _renamed("max_np", max_np, "max_num_proc", max_num_proc),
        "host_discovery_script": host_discovery_script,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "slots": slots,
    }
    if asked := [name for name, value in elastic.items() if value is not None]:
        raise NotImplementedError(f"Elastic jobs are not available in this version: {', '.join(asked)}.")
    if hosts is not None and hostfile is not None:
        raise ValueError("horovod.run() takes hosts or hostfile, not both.")
    if use_gloo and use_mpi:
        raise ValueError("horovod.run() takes use_gloo or use_mpi, not both.")
    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"num_proc must be a whole number >= 1, not {ranks!r}.")
    if not callable(func):
        raise TypeError(f"horovod.run() needs a function, not {type(func).__name__}.")
    where = _hosts(hosts, hostfile, ranks)
    settings = {} if start_timeout is None else {"HOROVOD_START_TIMEOUT": _seconds(start_timeout)}
    if use_mpi:
        find_mpirun(os.environ)  # an error of its own, if there is none
    command = [sys.executable, "-m", "horovod.runner.cli", "-np", str(ranks)]
    command += [] if where is None else ["-H", where]
    command += ["--mpi", f"--mpi-args={mpi_args or ''}"] if use_mpi else []
    command += [] if output_filename is None else ["--output-filename", os.fspath(output_filename)]
    command += ["--verbose"] if verbose else []
    with Handover.create() as handover:
        handover.give(Call(func, tuple(args), dict(kwargs or {})))
        settings |= {VARIABLE: str(handover.directory), CALLER: str(os.getpid())}
        task = [executable or sys.executable, "-m", "horovod.runner.run_task"]
        code, tail = _Job([*command, *task], {**os.environ, **settings}).run()
        return _results(handover, ranks, code, tail, "mpirun" if use_mpi else "horovodrun")


def _hosts(hosts: str | None, hostfile: str | None, ranks: int) -> str | None:
    """Where the ranks go, as ``-H`` takes it; ``ValueError`` if they cannot."""
    if hosts is not None:
        found = parse_hosts(hosts)
    elif hostfile is not None:
        found = read_hostfile(Path(hostfile).read_text(), hostfile)
    else:
        return None
    place_here(found, ranks)
    return ",".join(f"{host.name}:{host.slots}" for host in found)


def _seconds(start_timeout: float) -> str:
    return str(number(0, exclusive=True).parse(str(start_timeout), "start_timeout"))


def _renamed(old: str, given: int | None, new: str, value: int | None) -> int | None:
    """The value of a parameter that has an old name, too."""
    if given is None:
        return value
    _deprecated(old, new)
    return given


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"Parameter `{old}` has been replaced with `{new}`.", DeprecationWarning, stacklevel=4)


class _Job:
    """The launcher's process, whose output is passed on. Run it once."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command, self._env = command, env
        self._tail: list[str] = []
        self._selector = selectors.DefaultSelector()

    def run(self) -> tuple[int, list[str]]:
        """Its exit code, and the last lines of its standard error."""
        process = subprocess.Popen(
            self._command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # a terminal's Ctrl-C reaches the caller alone, which passes it on
        )
        assert process.stdout is not None
        assert process.stderr is not None
        with process, self._selector:
            self._listen(process.stdout, lambda: sys.stdout, [])
            self._listen(process.stderr, lambda: sys.stderr, self._tail)
            try:
                self._pass_on()
                return process.wait(), self._tail
            except BaseException:
                self._end(process)
                raise

    def _pass_on(self, seconds: float | None = None) -> None:
        """Until both pipes have ended, or the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            for key, _ in self._selector.select(left):
                key.data()

    def _listen(self, pipe: IO[bytes], target: Callable[[], Any], tail: list[str]) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace")

        def on_output() -> None:
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                self._selector.unregister(pipe)
            text = decode.decode(data, not data)
            tail[:] = "".join([*tail, text]).splitlines(keepends=True)[-_TAIL_LINES:]
            with suppress(OSError, ValueError):  # the caller's own output has gone: the job goes on
                target().write(text)
                target().flush()

        self._selector.register(pipe, selectors.EVENT_READ, on_output)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """The caller was interrupted: so are the ranks. What they still say is passed on."""
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        try:
            self._pass_on(INTERRUPT_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()  # its guardians end the ranks


def _results(handover: Handover, ranks: int, code: int, tail: Sequence[str], launcher: str) -> list[Any]:
    outcomes = [handover.outcome_of(rank) for rank in range(ranks)]
    done = [outcome for outcome in outcomes if isinstance(outcome, Success)]
    if code == 0 and len(done) == ranks:
        return [outcome.value for outcome in done]
    failures = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Failure)}
    # The first that failed by itself; others may only have missed it.
    first = min(failures, key=lambda rank: (failures[rank].peer_lost, failures[rank].at), default=None)
    failure = failures[first] if first is not None else None
    silent = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
    error = WorkerFailedError(launcher, code, first, failure, "".join(tail), silent)
    raise error from (failure.exception() if failure is not None else None)
