"""Whether the story of a scripted job is a good one. Pure: from a script and what came of it to complaints.

A good story: every fault fired, or its rank had been stopped by somebody else's; every rank that is not
guilty either got only right results, or an error that names a guilty rank, its host and its process; nobody
hangs; nothing is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.chaos.script import EXIT_CODES, FAILED, GUILTY, Fault, Script
from tests.support.chaos.story import Event

CRASHES = ("Fatal Python error", "nanobind", "terminate called", "Exception ignored", "Traceback")


@dataclass(frozen=True)
class Outcome:
    """What came of a script."""

    stories: Mapping[int, Sequence[Event]]
    codes: Mapping[int, int]
    """Exit codes by rank, negative for a signal; none of a rank that hung, or that horovodrun started."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """What the ranks wrote to standard error."""
    launcher_code: int | None = None
    launcher_error: str = ""
    hung: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def judge(script: Script, outcome: Outcome) -> list[str]:
    """Everything that is wrong; nothing if all is well."""
    guilty = {rank: fault for rank in range(script.size) if (fault := _crime(script, outcome, rank))}
    complaints = [f"hangs: {who}" for who in outcome.hung]
    complaints += [f"left behind: {what}" for what in outcome.left]
    complaints += _unfired(script, outcome)
    for rank in range(script.size):
        story = outcome.stories.get(rank, ())
        complaints += _wrong(rank, story)
        if rank in guilty:
            complaints += _punishment(rank, guilty[rank], outcome)
        elif not outcome.hung:
            complaints += _innocent(script, outcome, rank, guilty)
    if script.launcher == "horovodrun" and not outcome.hung:
        complaints += _launcher(script, outcome, guilty)
    return complaints


def _crime(script: Script, outcome: Outcome, rank: int) -> Fault | None:
    """The fault by which a rank has ended its part, if it has."""
    fired = {(event["step"], event["kind"]) for event in _events(outcome, rank, "fired")}
    done = (fault for fault in script.faults if fault.rank == rank and fault.kind in GUILTY)
    return next((fault for fault in done if (fault.step, fault.kind) in fired), None)


def _events(outcome: Outcome, rank: int, name: str) -> list[Event]:
    return [event for event in outcome.stories.get(rank, ()) if event["event"] == name]


def _unfired(script: Script, outcome: Outcome) -> list[str]:
    """Faults that did not fire though their rank came that far."""
    found = []
    for fault in script.faults:
        fired = {(event["step"], event["kind"]) for event in _events(outcome, fault.rank, "fired")}
        passed = any(event["step"] >= fault.step for event in _events(outcome, fault.rank, "right"))
        if (fault.step, fault.kind) not in fired and passed:
            found.append(f"did not fire: {fault}")
    return found


def _wrong(rank: int, story: Sequence[Event]) -> list[str]:
    return [f"rank {rank}, step {e['step']}: {e['message']}" for e in story if e["event"] == "wrong"]


def _punishment(rank: int, fault: Fault, outcome: Outcome) -> list[str]:
    """A guilty rank ends as its deed says."""
    code = outcome.codes.get(rank)
    if code is None or code == EXIT_CODES[fault.kind]:
        return []
    return [f"rank {rank} ended with {code} after {fault.kind!r}: {outcome.errors.get(rank, '')[-1000:]}"]


def _innocent(script: Script, outcome: Outcome, rank: int, guilty: Mapping[int, Fault]) -> list[str]:
    complaints = [*_crashes(rank, outcome), *_kept(rank, outcome)]
    errors = _events(outcome, rank, "error")
    code = outcome.codes.get(rank)
    if errors:
        complaints += _naming(script, rank, errors[0], outcome, guilty)
        expected = FAILED
    else:
        expected = 0
        ended = bool(_events(outcome, rank, "end"))
        # The launcher may end a rank before it has noticed anything.
        if not ended and not (script.launcher == "horovodrun" and guilty):
            complaints.append(f"rank {rank} has neither come to its end nor got an error")
    if code is not None and code != expected:
        complaints.append(f"rank {rank} ended with {code}, not {expected}")
    return complaints


def _naming(
    script: Script, rank: int, error: Event, outcome: Outcome, guilty: Mapping[int, Fault]
) -> list[str]:
    message = error["message"]
    if not guilty:
        return [f"rank {rank} has an error, and nobody is guilty: {message}"]
    if any(_names(outcome, lost, message) for lost in guilty):
        return []
    # Before the world exists, nobody knows the processes in it.
    if error["kind"] == "init" and any(str(lost) in message for lost in guilty):
        return []
    return [f"rank {rank}, step {error['step']} of {len(script.operations)}, blames nobody guilty: {message}"]


def _names(outcome: Outcome, rank: int, message: str) -> bool:
    start = _events(outcome, rank, "start")[0]
    return all(part in message for part in (f"ank {rank} ", f"host {start['host']}", f"pid {start['pid']}"))


def _crashes(rank: int, outcome: Outcome) -> list[str]:
    text = outcome.errors.get(rank, "")
    return [f"rank {rank} complains: {text[-2000:]}"] if any(word in text for word in CRASHES) else []


def _kept(rank: int, outcome: Outcome) -> list[str]:
    """What the rank still holds after shutdown(), beyond what it held before init()."""
    before, after = _events(outcome, rank, "before"), _events(outcome, rank, "after")
    if not before or not after:
        return []
    more = {key: after[0][key] - before[0][key] for key in ("descriptors", "threads", "regions")}
    return [
        f"rank {rank} has {count} more {key} after shutdown()" for key, count in more.items() if count > 0
    ]


def _launcher(script: Script, outcome: Outcome, guilty: Mapping[int, Fault]) -> list[str]:
    """horovodrun ends with the code of a rank that failed, and says which one was the first."""
    failed = {rank: EXIT_CODES[fault.kind] for rank, fault in guilty.items() if EXIT_CODES[fault.kind] != 0}
    # Who ended with 0 has not failed, but those who missed it have.
    if any(EXIT_CODES[fault.kind] == 0 for fault in guilty.values()):
        failed |= {rank: FAILED for rank in range(script.size) if _events(outcome, rank, "error")}
    codes = {128 - code if code < 0 else code for code in failed.values()} or {0}
    complaints = []
    if outcome.launcher_code not in codes:
        complaints.append(f"horovodrun ended with {outcome.launcher_code}, not with one of {sorted(codes)}")
    if failed and not any(f"rank {rank} failed first" in outcome.launcher_error for rank in failed):
        complaints.append(f"horovodrun names none of {sorted(failed)}: {outcome.launcher_error[-1000:]}")
    return complaints
