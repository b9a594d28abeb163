"""Ranks that disagree, in every kind of operation: one story on every rank, and the world lives on."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.conformance.calls import AVERAGE, MAX, MIN, SUM, Call, Tensor
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import DYNAMIC, every_frontend, on_worlds
from tests.conformance.table import Outcome, check, perform_in, process_sets
from tests.support.outcomes import Raised, assert_raised
from tests.support.world import Workers


class Disagreement(NamedTuple):
    """What most ranks ask for, what the odd one asks for, and how the error puts it."""

    usual: Call
    other: Call
    what: str
    usual_value: str = ""
    other_value: str = ""


def _f4(*shape: int) -> tuple[Tensor, ...]:
    return (Tensor("float32", shape),)


def _i2(*shape: int) -> tuple[Tensor, ...]:
    return (Tensor("int16", shape),)


ALLREDUCE = Call("usual", "allreduce", _f4(12, 2), op=SUM)
ALLGATHER = Call("usual", "allgather", _f4(12, 2))
BROADCAST = Call("usual", "broadcast", _f4(12, 2))
ALLTOALL = Call("usual", "alltoall", _f4(12, 2))
REDUCESCATTER = Call("usual", "reducescatter", _f4(12, 2), op=SUM)
GROUP = Call("usual", "grouped_allreduce", _f4(12, 2) + _f4(3), op=SUM)
GATHERS = Call("usual", "grouped_allgather", _f4(12, 2) + _f4(3))
SCATTERS = Call("usual", "grouped_reducescatter", _f4(12, 2) + _f4(3), op=SUM)

FACTORS = "prescale and/or postscale factors"


def _other(usual: Call, **changes: Any) -> Call:
    return replace(usual, label="other", **changes)


def _typed(usual: Call) -> Disagreement:
    other = _other(usual, tensors=_i2(*usual.tensors[0].shape) + usual.tensors[1:])
    return Disagreement(usual, other, "data types", "float32", "int16")


def _shaped(usual: Call, *shape: int) -> Disagreement:
    other = _other(usual, tensors=_f4(*shape) + usual.tensors[1:])
    return Disagreement(usual, other, f"{usual.base.upper()} tensor shapes", "[12, 2]", str(list(shape)))


def _counted(usual: Call, tensors: tuple[Tensor, ...]) -> Disagreement:
    return Disagreement(usual, _other(usual, tensors=tensors), "group")


DISAGREEMENTS = {
    "allreduce dtype": _typed(ALLREDUCE),
    "allreduce shape": _shaped(ALLREDUCE, 2, 12),
    "allreduce ndim": _shaped(ALLREDUCE, 24),
    "allreduce large": _shaped(ALLREDUCE, 3000, 2),
    "allreduce prescale": Disagreement(
        ALLREDUCE, _other(ALLREDUCE, prescale=0.5), FACTORS, "prescale 1", "prescale 0.5"
    ),
    "allreduce postscale": Disagreement(
        ALLREDUCE, _other(ALLREDUCE, postscale=2.0), FACTORS, "postscale 1", "postscale 2"
    ),
    "allreduce op": Disagreement(ALLREDUCE, _other(ALLREDUCE, op=MAX), "reduction operation", "Sum", "Max"),
    "allreduce min and max": Disagreement(
        replace(ALLREDUCE, op=MIN), _other(ALLREDUCE, op=MAX), "reduction operation", "Min", "Max"
    ),
    "allreduce compression": Disagreement(
        ALLREDUCE, _other(ALLREDUCE, compression="fp16"), "compression", "no compression", "fp16"
    ),
    "allreduce compressions": Disagreement(
        replace(ALLREDUCE, compression="bf16"),
        _other(ALLREDUCE, compression="fp16"),
        "compression",
        "bf16",
        "fp16",
    ),
    "allgather dtype": _typed(ALLGATHER),
    "allgather ndim": _shaped(ALLGATHER, 12),
    "allgather rest": _shaped(ALLGATHER, 12, 3),
    "allgather large rest": _shaped(ALLGATHER, 12, 3000),
    "broadcast dtype": _typed(BROADCAST),
    "broadcast shape": _shaped(BROADCAST, 12, 3),
    "broadcast rows": _shaped(BROADCAST, 11, 2),
    "broadcast root": Disagreement(
        BROADCAST, _other(BROADCAST, root=1), "BROADCAST root ranks", "has 0", "has 1"
    ),
    "alltoall dtype": _typed(ALLTOALL),
    "alltoall ndim": _shaped(ALLTOALL, 12),
    "alltoall rest": _shaped(ALLTOALL, 12, 3),
    "reducescatter dtype": _typed(REDUCESCATTER),
    "reducescatter shape": _shaped(REDUCESCATTER, 12, 3),
    "reducescatter rows": _shaped(REDUCESCATTER, 13, 2),
    "reducescatter op": Disagreement(
        REDUCESCATTER, _other(REDUCESCATTER, op=AVERAGE), "reduction operation", "Sum", "Average"
    ),
    "reducescatter prescale": Disagreement(
        REDUCESCATTER, _other(REDUCESCATTER, prescale=0.5), FACTORS, "prescale 1", "prescale 0.5"
    ),
    "group dtype": _typed(GROUP),
    "group shape": _shaped(GROUP, 2, 12),
    "group op": Disagreement(GROUP, _other(GROUP, op=MAX), "reduction operation", "Sum", "Max"),
    "group prescale": Disagreement(GROUP, _other(GROUP, prescale=0.5), FACTORS, "prescale 1", "prescale 0.5"),
    "group size": _counted(GROUP, GROUP.tensors + _f4(1)),
    "group of one": _counted(GROUP, GROUP.tensors[:1]),
    "group allgather rest": _shaped(GATHERS, 12, 3),
    "group allgather size": _counted(GATHERS, GATHERS.tensors + _f4(1)),
    "group reducescatter rows": _shaped(SCATTERS, 13, 2),
    "group reducescatter size": _counted(SCATTERS, SCATTERS.tensors[:1]),
}


@every_frontend
@on_worlds(2, 3)
@pytest.mark.parametrize("case", DISAGREEMENTS)
@pytest.mark.parametrize("odd_rank", [0, 1])
@pytest.mark.parametrize("cached", [False, True], ids=["new", "cached"])
def test_one_story(world: Workers, frontend: str, case: str, odd_rank: int, cached: bool) -> None:
    found = DISAGREEMENTS[case]
    name = f"disagree {case} {odd_rank} {cached}"
    usual, other = replace(found.usual, name=name), replace(found.other, name=name)
    results = world.run(_disagree, frontend, usual, other, odd_rank, cached)
    _assert_one_story([outcome for outcome, _ in results], found, odd_rank)
    check(_afterwards(usual, other), [outcomes for _, outcomes in results])


def _assert_one_story(outcomes: list[Any], found: Disagreement, odd_rank: int) -> None:
    refused = [outcome if isinstance(outcome, Raised) else None for outcome in outcomes]
    parts = (found.what, found.usual_value, found.other_value)
    assert_raised(refused, "MismatchError", "Mismatched", f"rank {odd_rank} has", *parts)
    assert len({outcome.message for outcome in refused if outcome}) == 1, "the ranks tell different stories"


def _afterwards(usual: Call, other: Call) -> list[Call]:
    """Legal changes, on all ranks alike, then an unnamed operation."""
    named = [replace(call, label=f"{i} {call.label}") for i, call in enumerate((usual, other, usual))]
    return [*named, Call("unnamed", "allreduce", _f4(3), members=usual.members)]


def _disagree(
    frontend: str, usual: Call, other: Call, odd_rank: int, cached: bool
) -> tuple[Outcome, list[Outcome]]:
    rank = frontend_of(frontend).hvd.rank()
    with process_sets(frontend, [] if usual.members is None else [usual.members]) as sets:
        if cached:
            perform_in(frontend, [usual, replace(usual, label="again")], sets)
        (outcome,) = perform_in(frontend, [other if rank == odd_rank else usual], sets)
        return outcome, perform_in(frontend, _afterwards(usual, other), sets)


@every_frontend
@on_worlds(3, **DYNAMIC)
@pytest.mark.parametrize("case", ["allreduce dtype", "allgather rest", "reducescatter op", "group size"])
def test_in_a_process_set(world: Workers, frontend: str, case: str) -> None:
    """Told to the members, who are named by their global ranks."""
    found = DISAGREEMENTS[case]
    usual, other = (replace(call, name=case, members=(1, 2)) for call in (found.usual, found.other))
    results = world.run(_disagree, frontend, usual, other, 2, True)
    assert results[0][0] is None
    _assert_one_story([outcome for outcome, _ in results[1:]], found, 2)
    check(_afterwards(usual, other), [outcomes for _, outcomes in results])


ONE_OF_EACH = {call.kind: call for call in (ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER)}


@every_frontend
@on_worlds(2, 3)
@pytest.mark.parametrize(("usual", "other"), [*itertools.permutations(ONE_OF_EACH, 2)])
@pytest.mark.parametrize("count", [6, 6000], ids=["tiny", "medium"])
def test_other_operations_in_the_same_place(
    world: Workers, frontend: str, usual: str, other: str, count: int
) -> None:
    """Unnamed operations match by position: a different kind there is told, not waited for."""
    calls = [replace(ONE_OF_EACH[kind], tensors=_f4(count), label=kind) for kind in (usual, other)]
    results = world.run(_disagree, frontend, *calls, 1, False)
    found = Disagreement(*calls, "Mismatched operations", usual.upper(), other.upper())
    _assert_one_story([outcome for outcome, _ in results], found, 1)
    check(_afterwards(*calls), [outcomes for _, outcomes in results])


@every_frontend
@on_worlds(2, 3, 4)
@pytest.mark.parametrize("seed", range(3))
def test_among_many_that_agree(world: Workers, frontend: str, seed: int) -> None:
    """All kinds in flight, in another order on each rank, every third one wrong on one rank."""
    results = world.run(_among_many, frontend, seed)
    assert results == [results[0]] * len(results)
    wrong = {"MismatchError"}
    assert [set(found) for found in zip(*results[0], strict=True)] == [
        wrong if i % 3 == 0 else {"ok"} for i in range(len(DISAGREEMENTS))
    ]


def _among_many(frontend: str, seed: int) -> list[list[str]]:
    rank, size = frontend_of(frontend).hvd.rank(), frontend_of(frontend).hvd.size()
    rounds = []
    for _ in range(3):
        calls = []
        for i, (case, found) in enumerate(DISAGREEMENTS.items()):
            odd = i % 3 == 0 and rank == (i + seed) % size
            call = found.other if odd else found.usual
            calls.append(replace(call, label=case, name=f"many {case}", form="_async"))
        order = np.random.default_rng([seed, rank]).permutation(len(calls)).tolist()
        outcomes = perform_in(frontend, calls, {}, [order] * size)
        rounds.append([o.classes[0] if isinstance(o, Raised) else "ok" for o in outcomes])
    return rounds
