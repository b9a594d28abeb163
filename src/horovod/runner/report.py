"""The last lines of a failed job: who failed first, how, and why. Pure: from what happened to text.

Knows nothing about processes or where the text goes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["RankOutcome", "blame", "describe_end", "describe_exit", "exit_code", "failure_report", "own_end"]

MAX_LINES = 15
_TRACE_LINES = 10
_LINE_WIDTH = 200
_TRACEBACK = "Traceback (most recent call last):"
_OUT_OF_MEMORY = "out of memory: the kernel ended processes on this host for lack of memory during the job"
# How the ranks that survive a peer end; MismatchError and other subclasses are failures in their own right.
_PEER_WAS_LOST = re.compile(r"(?:[\w.]+\.)?(?:PeerLostError|HorovodInternalError)\b")


@dataclass(frozen=True)
class RankOutcome:
    """How one rank ended. ``code`` is its exit code, or minus the signal that killed it."""

    rank: int
    host: str
    pid: int
    code: int
    at: float
    tail: Sequence[str] = field(default=())
    """The last lines that it wrote to standard error."""
    bereaved: bool = False
    """Whether it had told the launcher that another rank was lost."""


def exit_code(code: int) -> int:
    """What a shell would give for it: 128+n for signal n."""
    return 128 - code if code < 0 else code


def blame(
    outcomes: Sequence[RankOutcome], stopped_at: float | None, sent: frozenset[int] = frozenset()
) -> RankOutcome | None:
    """The rank that failed first of itself; None when all is well.

    ``stopped_at`` is when the launcher began to end ranks, ``sent`` are the signals it used: what happens
    after that, and by those, is its own doing. A rank that reports a lost peer is only blamed when no other
    is.
    """

    def guilt(outcome: RankOutcome) -> int:
        if stopped_at is None or outcome.at <= stopped_at:
            return 2 if is_secondary(outcome) else 0
        # A rank that takes seconds to die, writing a core file for instance, may be the cause all the same.
        return 1 if outcome.code < 0 and -outcome.code not in sent else 3

    failed = [outcome for outcome in outcomes if outcome.code != 0]
    return min(failed, key=lambda outcome: (guilt(outcome), outcome.at), default=None)


def own_end(outcomes: Sequence[RankOutcome]) -> RankOutcome | None:
    """The first rank that chose an exit code other than 0, as a handler of SIGTERM may do."""
    chosen = [outcome for outcome in outcomes if outcome.code > 0 and not is_secondary(outcome)]
    return min(chosen, key=lambda outcome: outcome.at, default=None)


def is_secondary(outcome: RankOutcome) -> bool:
    """Whether the rank ended with an error because *another* rank was lost."""
    return outcome.code > 0 and (
        outcome.bereaved or any(_PEER_WAS_LOST.match(line) for line in _last_traceback(outcome.tail))
    )


def failure_report(
    blamed: RankOutcome,
    outcomes: Sequence[RankOutcome],
    *,
    started_at: float,
    oom_kills: int = 0,
) -> list[str]:
    """At most 15 lines. ``oom_kills``: processes that the kernel ended for lack of memory during the job."""
    lines = [
        f"horovodrun: rank {blamed.rank} failed first: {describe_exit(blamed.code)}"
        f" (host {blamed.host}, pid {blamed.pid}, after {blamed.at - started_at:.1f} s)"
    ]
    if hint := _hint(blamed, oom_kills):
        lines.append(f"  hint: {hint}")
    early = [o.rank for o in outcomes if o.code == 0 and o.at <= blamed.at]
    if early and is_secondary(blamed):
        lines.append(f"  note: {_ranks(early)} had ended before, with exit code 0")
    trace = _shorten(_last_traceback(blamed.tail) or blamed.tail)
    lines += ["  | " + line[:_LINE_WIDTH] for line in trace] or ["  (it wrote nothing to standard error)"]
    others = [o.rank for o in outcomes if o.code != 0 and o.rank != blamed.rank]
    ended = f"; after it ended: {_ranks(others)}" if others else ""
    lines.append(f"horovodrun: exit code {exit_code(blamed.code)}{ended}")
    return lines


def describe_exit(code: int) -> str:
    """``exit code 3`` or ``killed by SIGKILL (9)``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = "signal"
    return f"killed by {name} ({-code})"


def describe_end(code: int, oom_kills: int) -> str:
    """The same with the reason, if it was the memory: one line for a survivor's error."""
    return (
        f"{describe_exit(code)}; {_OUT_OF_MEMORY}"
        if code == -signal.SIGKILL and oom_kills
        else describe_exit(code)
    )


def _hint(blamed: RankOutcome, oom_kills: int) -> str:
    if blamed.code == -signal.SIGKILL and oom_kills:
        return _OUT_OF_MEMORY
    return {
        -signal.SIGKILL: "somebody sent SIGKILL: a memory limit (see dmesg), a batch system, or kill -9",
        -signal.SIGSEGV: "a crash in native code; python -X faulthandler shows where",
        -signal.SIGBUS: "often a full /dev/shm or a file that was cut short while mapped",
        -signal.SIGILL: "a library was built for another CPU",
        -signal.SIGABRT: "native code gave up; its message is usually just above",
    }.get(blamed.code, "")


def _last_traceback(tail: Sequence[str]) -> Sequence[str]:
    starts = [index for index, line in enumerate(tail) if line.startswith(_TRACEBACK)]
    return tail[starts[-1] :] if starts else ()


def _shorten(lines: Sequence[str]) -> list[str]:
    """The end is what matters; of a traceback the first line stays, so that it can be seen to be one."""
    if len(lines) <= _TRACE_LINES:
        return list(lines)
    if lines[0].startswith(_TRACEBACK):
        return [lines[0], "  ...", *lines[-(_TRACE_LINES - 2) :]]
    return list(lines[-_TRACE_LINES:])


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return ("rank " if len(ranks) == 1 else f"{len(ranks)} ranks: ") + shown
