"""The process that has started the ranks of this host: it tells jobs apart whose launcher sets no variable
for that. Reads /proc only.
"""

from __future__ import annotations

import os

__all__ = ["parent_process"]

# The processes that start the ranks of one job on one host; the kernel keeps 15 characters of a name.
_PROCESS_MANAGERS = ("hydra_pmi_proxy", "mpispawn", "pmi_proxy")


def parent_process() -> str:
    """The process that started this host's ranks, as ``pid:start time`` (a pid alone may be used again).

    A process manager among the ancestors is preferred to the direct parent, because ``mpirun sh -c 'python
    ...'`` gives every rank a shell of its own.
    """
    direct = os.getppid()
    pid, chosen = direct, ""
    while pid > 1:
        facts = _stat(pid)
        if facts is None:
            break
        name, ppid, started = facts
        if not chosen:
            chosen = f"{pid}:{started}"
        if name in _PROCESS_MANAGERS:
            return f"{pid}:{started}"
        pid = ppid
    return chosen or f"{direct}:?"


def _stat(pid: int) -> tuple[str, int, str] | None:
    """Name, parent and start time of a process, from /proc; None where that is not to be had."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:
        return None
    # The name is in parentheses and may itself contain any character: look for the last closing one.
    name = text[text.index("(") + 1 : text.rindex(")")]
    rest = text[text.rindex(")") + 2 :].split()
    return name, int(rest[1]), rest[19]
