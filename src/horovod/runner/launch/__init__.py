"""Launchers, one file each, behind one small interface: start one rank somewhere and hand back its channels.

What to do with a job that runs is the supervisor's business, whatever launcher started it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from horovod.runner.placement import Slot

if TYPE_CHECKING:
    from horovod.runner.build import check_build
    from horovod.runner.cli import main as run_commandline
    from horovod.runner.options import parse_args

__all__ = ["Channels", "Launcher", "Worker", "check_build", "parse_args", "run_commandline"]


@dataclass(frozen=True)
class Worker:
    """One rank to start: its place, its command (``argv[0]`` is a path) and its whole environment."""

    slot: Slot
    argv: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Channels:
    """The launcher's ends of what leads to a rank's guardian. The receiver owns the descriptors."""

    control: int
    """Write signal numbers as bytes; closing it ends the rank."""
    status: int
    """Lines for :func:`horovod.runner.guardian.parse_status`; its end: nothing is left of the rank."""
    stdout: int
    stderr: int
    reap: Callable[[], None]
    """Call it once, after the end of ``status``."""


class Launcher(Protocol):
    """Starts ranks. Called with all signals blocked and no thread running."""

    def start(self, worker: Worker) -> Channels:
        """Start one rank under a guardian."""
        ...


def __getattr__(name: str) -> Any:
    """What the original has under this path."""
    if name in ("run_commandline", "_run"):
        from horovod.runner import cli

        return cli.main if name == "run_commandline" else cli.run
    if name == "parse_args":
        from horovod.runner import options

        return options.parse_args
    if name == "check_build":
        from horovod.runner import build

        return build.check_build
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
