"""Ranks on this machine: a forked guardian each. Knows nothing about the job's fate."""

from __future__ import annotations

import os
from collections.abc import Sequence

from horovod.runner.guardian import GuardianSpec, guard
from horovod.runner.launch import Channels, Worker

__all__ = ["LocalLauncher"]


class LocalLauncher:
    """Forks guardians. The process must be single-threaded when ranks are started.

    ``private_fds`` are descriptors of the launcher that no other process may keep.
    """

    def __init__(self, ignored_signals: frozenset[int], private_fds: Sequence[int] = ()) -> None:
        self._ignored_signals = ignored_signals
        # With the launcher's ends for ranks already started: were another guardian to keep a copy of a
        # lifeline's write end, the launcher's death would go unnoticed.
        self._own_ends: list[int] = list(private_fds)

    def start(self, worker: Worker) -> Channels:
        """Start one rank under a guardian."""
        lifeline, control = os.pipe()
        status, status_end = os.pipe()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        self._own_ends += [control, status, out, err]
        launcher_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            guard(
                GuardianSpec(
                    argv=worker.argv,
                    env=worker.env,
                    launcher_pid=launcher_pid,
                    lifeline=lifeline,
                    status=status_end,
                    stdout=out_end,
                    stderr=err_end,
                    foreign_fds=tuple(self._own_ends),
                    ignored_signals=self._ignored_signals,
                )
            )
        for fd in (lifeline, status_end, out_end, err_end):
            os.close(fd)
        return Channels(control, status, out, err, reap=lambda: _reap(pid))


def _reap(pid: int) -> None:
    os.waitpid(pid, 0)
