"""Whom to blame, and the last lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.runner.report import (
    MAX_LINES,
    RankOutcome,
    blame,
    describe_end,
    describe_exit,
    exit_code,
    failure_report,
)

TRACE = ("Traceback (most recent call last):", '  File "x.py", line 1, in <module>')
LOST = (*TRACE, "horovod.exceptions.PeerLostError: rank 1 was lost")
INTERNAL = (*TRACE, "horovod.common.exceptions.HorovodInternalError: shut down", "a second line")
MISMATCH = (*TRACE, "horovod.exceptions.MismatchError: shapes differ")
OWN = (*TRACE, "ValueError: mine")


def ended(
    rank: int, code: int, at: float, tail: tuple[str, ...] = (), *, bereaved: bool = False
) -> RankOutcome:
    return RankOutcome(rank, "node", 100 + rank, code, at, tail, bereaved)


@pytest.mark.parametrize(
    ("outcomes", "stopped_at", "rank"),
    [
        ([ended(0, 0, 1), ended(1, 0, 2)], None, None),
        ([ended(0, 1, 2, OWN), ended(1, 1, 1, OWN)], None, 1),
        ([ended(0, 1, 1, LOST), ended(1, -9, 2)], None, 1),
        ([ended(0, 1, 1, INTERNAL), ended(1, 3, 2)], None, 1),
        ([ended(0, 1, 1, MISMATCH), ended(1, 1, 2, OWN)], None, 0),
        ([ended(0, 1, 1, LOST), ended(1, 0, 0.5)], None, 0),
        # It had told that it lost another, and then ended in its own way, sooner than that one.
        ([ended(0, 4, 1, bereaved=True), ended(1, 1, 2, OWN)], None, 1),
        ([ended(0, 4, 1, bereaved=True), ended(1, 0, 0.5)], None, 0),
        ([ended(0, -11, 1, bereaved=True), ended(1, 1, 2, OWN)], None, 0),
        # Ended by the launcher: not to blame.
        ([ended(0, -15, 3), ended(1, 1, 1, OWN)], 2.5, 1),
        # The cause took its time to die (a core file), the survivor was quicker and the launcher too.
        ([ended(0, 1, 1, LOST), ended(1, -11, 9), ended(2, -15, 3)], 2.5, 1),
        ([ended(0, 1, 1, LOST), ended(1, 1, 9, OWN), ended(2, -15, 3)], 2.5, 0),
        # An older, handled traceback further up does not count.
        ([ended(0, 1, 1, (*LOST, *OWN)), ended(1, 1, 2, OWN)], None, 0),
    ],
)
def test_blame(outcomes, stopped_at, rank):
    found = blame(outcomes, stopped_at, frozenset({15}))
    assert (found and found.rank) == rank


@pytest.mark.parametrize(
    ("code", "text", "shell"),
    [(3, "exit code 3", 3), (-9, "killed by SIGKILL (9)", 137), (-40, "killed by signal (40)", 168)],
)
def test_exits(code, text, shell):
    assert (describe_exit(code), exit_code(code)) == (text, shell)


def test_a_whole_report():
    blamed = ended(1, 1, 3.04, OWN)
    lines = failure_report(blamed, [ended(0, -15, 5), blamed], started_at=1.0)
    assert lines == [
        "horovodrun: rank 1 failed first: exit code 1 (host node, pid 101, after 2.0 s)",
        "  | Traceback (most recent call last):",
        '  |   File "x.py", line 1, in <module>',
        "  | ValueError: mine",
        "horovodrun: exit code 1; after it ended: rank 0",
    ]


@pytest.mark.parametrize(("oom_kills", "hint"), [(0, "kill -9"), (1, "out of memory")])
def test_the_hint_for_sigkill(oom_kills, hint):
    blamed = ended(0, -9, 1)
    assert hint in failure_report(blamed, [blamed], started_at=0, oom_kills=oom_kills)[1]


def test_a_peer_that_left_early_is_mentioned():
    blamed = ended(0, 1, 2, LOST)
    lines = failure_report(blamed, [blamed, ended(1, 0, 1)], started_at=0)
    assert "  note: rank 1 had ended before, with exit code 0" in lines


lines_of_text = st.lists(
    st.text(st.characters(exclude_characters="\n\r"), max_size=300) | st.sampled_from(TRACE), max_size=60
)


@settings(deadline=None)
@given(lines_of_text, st.integers(-64, 255).filter(bool), st.integers(1, 300), st.integers(0, 2))
def test_reports_are_short(tail, code, size, oom_kills):
    blamed = ended(0, code, 2, tuple(tail))
    others = [ended(rank, rank % 3, 1) for rank in range(1, size)]
    lines = failure_report(blamed, [blamed, *others], started_at=0, oom_kills=oom_kills)
    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > 210] == []
    if tail:
        assert lines[-2] == "  | " + tail[-1][:200]


@pytest.mark.parametrize(
    ("code", "oom_kills", "text"),
    [
        (3, 1, "exit code 3"),
        (-11, 1, "killed by SIGSEGV (11)"),
        (-9, 0, "killed by SIGKILL (9)"),
        (-9, 1, "killed by SIGKILL (9); out of memory: the kernel ended processes on this host"),
    ],
)
def test_an_end_in_a_line(code, oom_kills, text):
    assert describe_end(code, oom_kills).startswith(text)
    assert ("memory" in describe_end(code, oom_kills)) == ("memory" in text)
