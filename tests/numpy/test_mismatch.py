"""Ranks that disagree: the same error on every rank, naming who said what, and the world lives on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support.marks import on_worlds
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers


class Call(NamedTuple):
    """One rank's operation under the common name."""

    kind: str = "allreduce"
    dtype: str = "float32"
    shape: tuple[int, ...] = (4, 2)
    prescale: float = 1.0
    postscale: float = 1.0
    op: int = 1
    root: int = 0


USUAL = Call()
BROADCAST = Call(kind="broadcast")


def _submit(call: Call, name: str) -> Any:
    tensor = np.ones(call.shape, call.dtype)
    if call.kind == "broadcast":
        return hvd.broadcast(tensor, call.root, name=name)
    return hvd.allreduce(
        tensor, name=name, op=call.op, prescale_factor=call.prescale, postscale_factor=call.postscale
    )


def _disagree(name: str, usual: Call, other: Call, odd_rank: int, cached: bool) -> Raised | None:
    for _ in range(2 if cached else 0):
        _submit(usual, name)
    outcome = error_of(_submit, other if hvd.rank() == odd_rank else usual, name)
    for call in (usual, other, usual, other):  # legal changes, on all ranks alike
        result = _submit(call, name)
        expected = call.prescale * call.postscale * (hvd.size() if call.op == hvd.Sum else 1)
        assert np.all(result == (1 if call.kind == "broadcast" else expected)), (call, result)
    return outcome


# (usual, other, what the message starts with, the usual value, the other one)
DISAGREEMENTS = {
    "dtype": (USUAL, Call(dtype="float64"), "data types", "float32", "float64"),
    "integer dtype": (USUAL, Call(dtype="int32"), "data types", "float32", "int32"),
    "shape": (USUAL, Call(shape=(2, 4)), "ALLREDUCE tensor shapes", "[4, 2]", "[2, 4]"),
    "ndim": (USUAL, Call(shape=(8,)), "ALLREDUCE tensor shapes", "[4, 2]", "[8]"),
    "0-d": (Call(shape=()), Call(shape=(1,)), "ALLREDUCE tensor shapes", "[]", "[1]"),
    "empty": (USUAL, Call(shape=(0, 2)), "ALLREDUCE tensor shapes", "[4, 2]", "[0, 2]"),
    "large": (USUAL, Call(shape=(3000, 2)), "ALLREDUCE tensor shapes", "[4, 2]", "[3000, 2]"),
    "both large": (Call(shape=(5000,)), Call(shape=(5001,)), "ALLREDUCE tensor shapes", "[5000]", "[5001]"),
    "prescale": (
        USUAL,
        Call(prescale=0.5),
        "prescale and/or postscale factors",
        "prescale 1",
        "prescale 0.5",
    ),
    "postscale": (
        USUAL,
        Call(postscale=2.0),
        "prescale and/or postscale factors",
        "postscale 1",
        "postscale 2",
    ),
    "reduction": (USUAL, Call(op=0), "reduction operation", "Sum", "Average"),
    "root": (BROADCAST, Call(kind="broadcast", root=1), "BROADCAST root ranks", "has 0", "has 1"),
    "broadcast shape": (
        BROADCAST,
        Call(kind="broadcast", shape=(9,)),
        "BROADCAST tensor shapes",
        "[4, 2]",
        "[9]",
    ),
    "broadcast dtype": (BROADCAST, Call(kind="broadcast", dtype="int64"), "data types", "float32", "int64"),
    "everything": (USUAL, Call("allreduce", "int64", (3,), 2.0, 2.0, 0), "data types", "float32", "int64"),
    "all but dtype": (
        USUAL,
        Call("allreduce", "float32", (3,), 2.0, 2.0, 0),
        "ALLREDUCE tensor shapes",
        "[4, 2]",
        "[3]",
    ),
    "factors and reduction": (
        USUAL,
        Call("allreduce", "float32", (4, 2), 2.0, 1.0, 0),
        "prescale and/or postscale factors",
        "prescale 1",
        "prescale 2",
    ),
    "shape and root": (
        BROADCAST,
        Call("broadcast", shape=(3,), root=1),
        "BROADCAST tensor shapes",
        "[4, 2]",
        "[3]",
    ),
}


@on_worlds(2, 3)
@pytest.mark.parametrize("case", DISAGREEMENTS)
@pytest.mark.parametrize("odd_rank", [0, 1])
@pytest.mark.parametrize("cached", [False, True], ids=["new", "cached"])
def test_named_on_every_rank(world: Workers, case: str, odd_rank: int, cached: bool) -> None:
    usual, other, what, usual_value, other_value = DISAGREEMENTS[case]
    outcomes = world.run(_disagree, f"disagree {case}", usual, other, odd_rank, cached)
    prefix = f"Mismatched {what} for tensor '{usual.kind}.disagree {case}'"
    assert_raised(outcomes, "MismatchError", prefix, f"rank {odd_rank} has", usual_value, other_value)
    assert len({outcome.message for outcome in outcomes}) == 1, "the ranks tell different stories"
    said = outcomes[0].message.split(f"rank {odd_rank} has ")[1].split(", rank")[0].split(". All")[0]
    assert other_value.removeprefix("has ") in said, "the value is said to be another rank's"


@on_worlds(2, 3, 4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("names", [1, 20])
def test_random_agreement_and_disagreement(world: Workers, seed: int, names: int) -> None:
    """Many names in flight at once, in another order on each rank, now agreeing and now not."""
    outcomes = world.run(_random_rounds, seed, names)
    assert outcomes == [outcomes[0]] * len(outcomes)
    assert {"ok", "MismatchError"} <= set(outcomes[0])


def _random_rounds(seed: int, names: int) -> list[str]:
    common = np.random.default_rng(seed)
    own = np.random.default_rng([seed, hvd.rank()])
    outcomes = []
    for _ in range(60 // names + 4):
        plans = []
        for _ in range(names):
            calls = [
                Call(shape=(int(n),), op=int(op)) for n, op in common.integers([[1, 0]], [[3, 2]], (2, 2))
            ]
            calls = [
                call._replace(shape=(call.shape[0] * 2000,)) if common.random() < 0.3 else call
                for call in calls
            ]
            plans.append((calls, int(common.integers(hvd.size())) if common.random() < 0.5 else None))
        handles = {}
        for i in own.permutation(names):
            calls, odd = plans[i]
            call = calls[1] if hvd.rank() == odd else calls[0]
            handles[i] = hvd.allreduce_async(np.ones(call.shape, "f4"), name=f"random.{i}", op=call.op)
        for i in range(names):
            calls, odd = plans[i]
            error = error_of(hvd.synchronize, handles[i])
            assert (error is not None) == (odd is not None and calls[0] != calls[1]), (plans[i], error)
            outcomes.append("ok" if error is None else error.classes[0])
    return outcomes


@on_worlds(2, HOROVOD_CACHE_CAPACITY="2")
@pytest.mark.parametrize("seed", range(3))
def test_with_a_small_cache(world: Workers, seed: int) -> None:
    """Cache ids are given and taken back all the time."""
    outcomes = world.run(_random_rounds, seed, 20)
    assert outcomes == [outcomes[0]] * len(outcomes)


@on_worlds(3, HOROVOD_CACHE_CAPACITY="0")
def test_without_a_cache(world: Workers) -> None:
    outcomes = world.run(_random_rounds, 1, 20)
    assert outcomes == [outcomes[0]] * len(outcomes)
