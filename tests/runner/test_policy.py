"""The decision what to do with a job now, without any process."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.policy import (
    FAILURE_GRACE,
    INTERRUPT_GRACE,
    TERMINATE_GRACE,
    Action,
    Interrupt,
    JobState,
    decide,
)

INT, TERM, KILL, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP


def test_a_running_job_is_left_alone():
    decision = decide(JobState(alive=2), 100.0)
    assert (decision.action, decision.wake_at) == (Action.WAIT, None)


def test_the_end():
    assert decide(JobState(alive=0, first_failure_at=1.0), 1.0).action is Action.FINISH


@pytest.mark.parametrize(
    ("state", "due", "signum"),
    [
        (JobState(1, first_failure_at=10), 10 + FAILURE_GRACE, TERM),
        (JobState(1, first_failure_at=10, sent=[Interrupt(TERM, 12)]), 12 + TERMINATE_GRACE, KILL),
        (JobState(1, interrupts=[Interrupt(INT, 10)]), 10, INT),
        (JobState(1, interrupts=[Interrupt(INT, 10)], sent=[Interrupt(INT, 10)]), 10 + INTERRUPT_GRACE, TERM),
        (
            JobState(1, interrupts=[Interrupt(TERM, 10)], sent=[Interrupt(TERM, 10)]),
            10 + TERMINATE_GRACE,
            KILL,
        ),
        (
            JobState(1, interrupts=[Interrupt(HUP, 10)], sent=[Interrupt(HUP, 10), Interrupt(TERM, 15)]),
            15 + TERMINATE_GRACE,
            KILL,
        ),
        (
            JobState(1, interrupts=[Interrupt(INT, 10), Interrupt(INT, 11)], sent=[Interrupt(INT, 10)]),
            11,
            KILL,
        ),
        # The same wish sent twice within a moment, as `timeout` does it.
        (
            JobState(1, interrupts=[Interrupt(TERM, 10), Interrupt(TERM, 10.01)], sent=[Interrupt(TERM, 10)]),
            10 + TERMINATE_GRACE,
            KILL,
        ),
        # A rank that ends badly because of Ctrl-C does not shorten the others' grace.
        (
            JobState(1, first_failure_at=11, interrupts=[Interrupt(INT, 10)], sent=[Interrupt(INT, 10)]),
            10 + INTERRUPT_GRACE,
            TERM,
        ),
        # Ctrl-C after a failure does not lengthen it.
        (
            JobState(1, first_failure_at=10, interrupts=[Interrupt(INT, 11)], sent=[Interrupt(INT, 11)]),
            10 + FAILURE_GRACE,
            TERM,
        ),
    ],
)
def test_what_comes_next_and_when(state, due, signum):
    before = decide(state, due - 0.001)
    at = decide(state, due)
    assert (before.action, before.wake_at) == (Action.WAIT, due)
    assert (at.action, at.signum) == (Action.SIGNAL, signum)


def test_nothing_is_harder_than_sigkill():
    state = JobState(1, first_failure_at=0, interrupts=[Interrupt(INT, 0)], sent=[Interrupt(KILL, 5)])
    assert decide(state, 1e9).action is Action.WAIT


def follow(failure: float | None, events: list[Interrupt]) -> tuple[list[Interrupt], float]:
    """Carry the decisions out on ranks that ignore all but SIGKILL: what was sent, and the end."""
    sent: list[Interrupt] = []
    now = 0.0
    while KILL not in {s.signum for s in sent}:
        state = JobState(
            alive=1,
            first_failure_at=failure if failure is not None and failure <= now else None,
            interrupts=[event for event in events if event.at <= now],
            sent=list(sent),
        )
        decision = decide(state, now)
        if decision.action is Action.SIGNAL:
            sent.append(Interrupt(decision.signum, now))
            continue
        known = [event.at for event in events] + [at for at in (failure, decision.wake_at) if at is not None]
        later = [at for at in known if at > now]
        if not later:
            break
        now = min(later)
    return sent, now


@given(
    failure=st.none() | st.floats(0, 10),
    interrupts=st.lists(
        st.tuples(st.sampled_from([INT, TERM, HUP, signal.SIGQUIT]), st.floats(0, 30)), max_size=4
    ),
)
def test_stubborn_ranks_always_end(failure, interrupts):
    events = [Interrupt(signum, at) for signum, at in sorted(interrupts, key=lambda event: event[1])]
    sent, end = follow(failure, events)
    causes = [event.at for event in events] + [at for at in (failure,) if at is not None]
    assert [s.signum for s in sent].count(KILL) == bool(causes)
    assert len({s.signum for s in sent}) == len(sent)
    assert end - min(causes, default=0.0) <= INTERRUPT_GRACE + FAILURE_GRACE + TERMINATE_GRACE
