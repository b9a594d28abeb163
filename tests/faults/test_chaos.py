"""Every kind of fault, on the coordinator and another rank, on both planes: survivors tell a good story.

``make test-chaos`` plays random scripts of the same kind.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.chaos.judge import Outcome, judge
from tests.support.chaos.nursery import Nursery
from tests.support.chaos.script import DEADLY, FAILED, GUILTY, HARMLESS, KINDS, Fault, Script, random_script
from tests.support.chaos.stage import play

OPERATIONS = (
    "init",
    "small",
    "many",
    "large",
    "alltoall",
    "evens",
    "objects",
    "large",
    "barrier",
    "shutdown",
)
SIZE = 3
PLANES = pytest.mark.parametrize("plane", ["shm", "tcp"])


def scripted(kind: str, rank: int, plane: str, step: int, moment: str, **more: Any) -> Script:
    """A script with one fault."""
    seconds = 0.2 if kind in HARMLESS else 0.0
    fault = Fault(rank, step, OPERATIONS[step], kind, moment, seconds)
    return Script(SIZE, plane, OPERATIONS, (fault,), **more)


@PLANES
@pytest.mark.parametrize("rank", [0, 2], ids=["coordinator", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scripted_fault(nursery: Nursery, tmp_path: Path, kind: str, rank: int, plane: str) -> None:
    # In the middle of a small operation on one rank, of a large one on the other.
    script = scripted(kind, rank, plane, 3 if rank == 0 else 2, "during")
    outcome = play(nursery, script, tmp_path / "job")
    assert judge(script, outcome) == []
    assert [event["kind"] for event in outcome.stories[rank] if event["event"] == "fired"] == [kind]
    errors = {r: [e for e in outcome.stories[r] if e["event"] == "error"] for r in range(SIZE) if r != rank}
    assert all(len(found) == (kind in GUILTY) for found in errors.values())


@pytest.mark.parametrize("kind", ["kill", "raise", "exit 0 at once", "leave", "fork and die"])
def test_a_scripted_fault_under_horovodrun(nursery: Nursery, tmp_path: Path, kind: str) -> None:
    script = scripted(kind, 1, "shm", 3, "before", launcher="horovodrun")
    outcome = play(nursery, script, tmp_path / "job")
    assert judge(script, outcome) == []
    assert [event["kind"] for event in outcome.stories[1] if event["event"] == "fired"] == [kind]


# -- The judge


def story(*events: dict[str, Any], pid: int = 100) -> list[dict[str, Any]]:
    """A story with its beginning."""
    return [{"event": "start", "pid": pid, "host": "here", "job": "j"}, *events]


FIRED = {"event": "fired", "step": 3, "kind": "kill"}
ERROR = {"event": "error", "step": 3, "operation": "large", "kind": "internal"}
BLAMED = {**ERROR, "message": "rank 0 (host here, pid 100) died"}
SCRIPT = scripted("kill", 0, "shm", 3, "before")
GOOD = Outcome(
    {0: story(FIRED), 1: story(BLAMED, pid=101), 2: story(BLAMED, pid=102)}, {0: -9, 1: FAILED, 2: FAILED}
)


def test_a_good_story_is_good() -> None:
    assert judge(SCRIPT, GOOD) == []


def with_story(rank: int, *events: dict[str, Any]) -> Outcome:
    """The good outcome, but for one rank."""
    return replace(GOOD, stories={**GOOD.stories, rank: story(*events, pid=100 + rank)})


@pytest.mark.parametrize(
    ("outcome", "complaint"),
    [
        (replace(GOOD, hung=("rank 1",)), "hangs: rank 1"),
        (replace(GOOD, left=("process 3",)), "left behind: process 3"),
        (replace(GOOD, errors={1: "Fatal Python error: x"}), "rank 1 complains"),
        (replace(GOOD, codes={**GOOD.codes, 1: -11}), "rank 1 ended with -11, not 7"),
        (replace(GOOD, codes={**GOOD.codes, 0: 0}), "rank 0 ended with 0 after 'kill'"),
        (with_story(1, {**ERROR, "message": "rank 2 (host here, pid 102) died"}), "blames nobody guilty"),
        (with_story(1, {**ERROR, "message": "rank 0 (host here, pid 10) died"}), "blames nobody guilty"),
        (with_story(1, {**ERROR, "message": "rank 0 (host there, pid 100) died"}), "blames nobody guilty"),
        (with_story(1), "neither come to its end nor got an error"),
        (with_story(1, {"event": "wrong", "step": 1, "message": "2 is not 3"}, BLAMED), "2 is not 3"),
        (with_story(0, {"event": "right", "step": 3}), "did not fire"),
        (with_story(0), "nobody is guilty"),
        (
            with_story(
                1,
                {"event": "before", "descriptors": 4, "threads": 1, "regions": 0},
                BLAMED,
                {"event": "after", "descriptors": 6, "threads": 1, "regions": 0},
            ),
            "rank 1 has 2 more descriptors",
        ),
    ],
)
def test_a_bad_story_is_found_out(outcome: Outcome, complaint: str) -> None:
    assert any(complaint in found for found in judge(SCRIPT, outcome)), judge(SCRIPT, outcome)


@pytest.mark.parametrize(
    ("code", "says", "good"),
    [
        (137, "horovodrun: rank 0 failed first: signal 9", True),
        (137, "horovodrun: rank 1 failed first: exit code 7", False),
        (7, "horovodrun: rank 0 failed first: signal 9", False),
        (0, "", False),
    ],
)
def test_the_launchers_part_is_judged(code: int, says: str, good: bool) -> None:
    script = replace(SCRIPT, launcher="horovodrun")
    outcome = replace(GOOD, codes={}, launcher_code=code, launcher_error=says)
    assert (judge(script, outcome) == []) is good


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_a_script_is_plain_data_and_follows_from_its_seed(seed: str) -> None:
    script = random_script(seed)
    assert Script.loads(script.dumps()) == script == random_script(seed)


def test_a_fault_that_contradicts_its_script_is_refused() -> None:
    with pytest.raises(ValueError, match="step 1 is 'small'"):
        Script(2, "shm", OPERATIONS, (Fault(0, 1, "large", DEADLY[0]),))
