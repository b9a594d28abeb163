"""How a rank commits each kind of fault. A deed is recorded before it is done: proof that it fired."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import horovod.numpy as hvd
from tests.support.chaos.script import Fault

Record = Callable[[Fault], None]

# The one who wakes it must not come too early: a signal to go on is lost on a process that is not stopped.
_WAKE = "until grep -q '^State:.T' /proc/{pid}/status; do sleep 0.01; done; sleep {seconds}; kill -CONT {pid}"

ON_THREADS = frozenset(("kill", "segfault", "abort", "terminate", "fork and die", "stop", "exit 3 at once"))
"""What a thread can do to the process while its main thread is inside of an operation."""


class Leave(Exception):
    """The rank's program is to end now, in good order."""


class DeliberateError(Exception):
    """The exception of a script."""


def commit(fault: Fault, record: Record) -> None:
    """Does it, here and now."""
    record(fault)
    _DEEDS[fault.kind](fault)


def commit_soon(fault: Fault, record: Record) -> threading.Thread:
    """Does it on a thread, after the fault's seconds."""

    def run() -> None:
        time.sleep(fault.seconds)
        commit(fault, record)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _signal(signum: int) -> Callable[[Fault], None]:
    def deed(_: Fault) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signum)
        time.sleep(60)  # on a thread, the signal may take a moment

    return deed


def _exit(code: int) -> Callable[[Fault], None]:
    return lambda _: os._exit(code)


def _segfault(_: Fault) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def _fork_and_die(fault: Fault) -> None:
    _lasting_child()
    _signal(signal.SIGKILL)(fault)


def _lasting_child() -> None:
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)


def _raise(_: Fault) -> None:
    raise DeliberateError("as the script says")


def _leave(_: Fault) -> None:
    raise Leave


def _shut_down(_: Fault) -> None:
    hvd.shutdown()
    time.sleep(0.2)  # it lives on: not its end is what the others hear of
    raise Leave


def _stop(fault: Fault) -> None:
    command = _WAKE.format(pid=os.getpid(), seconds=fault.seconds)
    with subprocess.Popen(["sh", "-c", command]) as waker:
        os.kill(os.getpid(), signal.SIGSTOP)
        waker.wait()


def _sleep(fault: Fault) -> None:
    time.sleep(fault.seconds)


def _fork(_: Fault) -> None:
    pid = os.fork()
    if pid == 0:
        sys.exit(0)  # with everything that an interpreter does at its end
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("a forked child did not end well")


def _close_stdout(_: Fault) -> None:
    os.close(1)


_DEEDS: dict[str, Callable[[Fault], None]] = {
    "kill": _signal(signal.SIGKILL),
    "exit 0 at once": _exit(0),
    "exit 3 at once": _exit(3),
    "segfault": _segfault,
    "abort": _signal(signal.SIGABRT),
    "terminate": _signal(signal.SIGTERM),
    "fork and die": _fork_and_die,
    "raise": _raise,
    "leave": _leave,
    "shut down": _shut_down,
    "stop": _stop,
    "sleep": _sleep,
    "slow": _sleep,
    "close stdout": _close_stdout,
    "fork": _fork,
}
