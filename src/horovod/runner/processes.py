"""Linux process control: subreaper, death signals, descendants from /proc. No policy.

Knows nothing about ranks or jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator

__all__ = [
    "adopting_orphans",
    "become_subreaper",
    "descendants",
    "die_with_parent",
    "has_in_environment",
    "signal_all",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {argument})")


def become_subreaper() -> None:
    """From now on, orphaned descendants become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """For a while, orphaned descendants become children of this process."""
    before = ctypes.c_int()
    if _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_GET_CHILD_SUBREAPER)")
    become_subreaper()
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def die_with_parent(signum: int, parent: int) -> bool:
    """Get ``signum`` when the parent dies. False when ``parent`` has died already: no signal will come."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    return os.getppid() == parent


def descendants(root: int) -> list[int]:
    """All processes below ``root`` at this moment."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent_of(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _parent_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:  # it has ended since
        return None
    # The name before the last ")" may contain anything; state and parent follow it.
    return int(stat[stat.rindex(b")") + 2 :].split(None, 2)[1])


def has_in_environment(pid: int, assignment: str) -> bool:
    """Whether process ``pid`` was started with ``NAME=value`` in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return assignment.encode() in file.read().split(b"\0")
    except OSError:
        return False


def signal_all(pids: list[int], signum: int) -> None:
    """Send ``signum`` to each; a stopped process is woken, so that it can act on it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
            if signum != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)
