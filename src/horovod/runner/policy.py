"""What to do now with a running job: a pure function of what has happened so far and the time.

Knows nothing about processes, pipes or signals' delivery; the supervisor carries the decision out.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Action", "Decision", "Interrupt", "JobState", "decide"]

FAILURE_GRACE = 2.0
"""Seconds that the other ranks get to report a peer's death by themselves."""
INTERRUPT_GRACE = 5.0
"""Seconds between a forwarded signal and the next, harder one."""
TERMINATE_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
SAME_INTERRUPT = 0.25
"""A signal this soon after another is the same wish: ``timeout`` and others send theirs twice."""


@dataclass(frozen=True)
class Interrupt:
    """A signal that the launcher received."""

    signum: int
    at: float


@dataclass(frozen=True)
class JobState:
    """What the decision needs to know. Times are of one monotonic clock."""

    alive: int
    """How many ranks are still running."""
    first_failure_at: float | None = None
    interrupts: Sequence[Interrupt] = ()
    sent: Sequence[Interrupt] = ()
    """The signals that were sent to all ranks, in order."""


class Action(enum.Enum):
    """What the supervisor can do."""

    WAIT = enum.auto()
    SIGNAL = enum.auto()
    FINISH = enum.auto()


@dataclass(frozen=True)
class Decision:
    """Do ``action`` because of ``reason``; look again at ``wake_at`` (None: when something happens)."""

    action: Action
    reason: str
    signum: int = 0
    wake_at: float | None = None


def decide(state: JobState, now: float) -> Decision:
    """The next step towards the end of the job."""
    if state.alive == 0:
        return Decision(Action.FINISH, "all ranks have ended")
    step = _next_step(state)
    if step is None:
        return Decision(Action.WAIT, "the job is running")
    signum, due, reason = step
    if signum == 0:
        return Decision(Action.WAIT, reason)
    if now >= due:
        return Decision(Action.SIGNAL, reason, signum)
    return Decision(Action.WAIT, reason, wake_at=due)


def _next_step(state: JobState) -> tuple[int, float, str] | None:
    """The signal to send next, when, and why; signal 0 when nothing harder is left."""
    sent = {signal_sent.signum: signal_sent.at for signal_sent in state.sent}
    if signal.SIGKILL in sent:
        return 0, 0.0, "SIGKILL was sent; waiting for the kernel"
    candidates = [
        step
        for step in (_step_after_interrupt(state, sent), _step_after_failure(state, sent))
        if step is not None
    ]
    return min(candidates, key=lambda step: step[1], default=None)


def _step_after_interrupt(state: JobState, sent: dict[int, float]) -> tuple[int, float, str] | None:
    if not state.interrupts:
        return None
    first = state.interrupts[0]
    name = signal.Signals(first.signum).name
    again = next((i for i in state.interrupts if i.at - first.at >= SAME_INTERRUPT), None)
    if again is not None:
        return signal.SIGKILL, again.at, "interrupted a second time"
    if first.signum not in sent:
        return first.signum, first.at, f"forwarding {name}"
    if signal.SIGTERM not in sent:
        return signal.SIGTERM, sent[first.signum] + INTERRUPT_GRACE, f"ranks did not end after {name}"
    return signal.SIGKILL, sent[signal.SIGTERM] + TERMINATE_GRACE, "ranks did not end after SIGTERM"


def _step_after_failure(state: JobState, sent: dict[int, float]) -> tuple[int, float, str] | None:
    if state.first_failure_at is None:
        return None
    if state.interrupts and state.interrupts[0].at <= state.first_failure_at:
        return None  # ranks that end badly because the user wanted an end: the others keep their grace
    if signal.SIGTERM not in sent:
        return signal.SIGTERM, state.first_failure_at + FAILURE_GRACE, "a rank failed and others still run"
    return signal.SIGKILL, sent[signal.SIGTERM] + TERMINATE_GRACE, "ranks did not end after SIGTERM"
