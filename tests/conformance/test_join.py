"""Join: ranks that run out of batches let the others go on."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.conformance import oracle
from tests.conformance.calls import AVERAGE, MAX, MIN, OP_NAMES, PRODUCT, SUM, Array, Tensor
from tests.conformance.frontends import frontend_of
from tests.conformance.marks import every_frontend, every_world, on_worlds
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers

# How many batches each of up to seven ranks has; the largest number occurs once in every world, so that it
# is known who joins last.
BATCHES = {
    "named": (1, 2, 3, 4, 5, 6, 7),
    "unnamed": (5, 4, 3, 2, 1, 1, 1),
    "the first none, named": (0, 3, 2, 1, 0, 2, 1),
    "only the second, unnamed": (0, 4, 0, 0, 0, 0, 0),
    "equal but one, named": (3, 4, 3, 3, 3, 3, 3),
}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "uint8", "int8")

every_op = pytest.mark.parametrize("op", [AVERAGE, SUM, MIN, MAX, PRODUCT], ids=lambda op: OP_NAMES[op])


def _tensors(batch: int) -> list[Tensor]:
    return [Tensor(dtype, ((9, 1501)[(batch + i) % 2],), seed=batch) for i, dtype in enumerate(DTYPES)]


def _reduced_with_joined(op: int, tensor: Tensor, batches: tuple[int, ...], batch: int) -> Array:
    """Who has joined gives zeros to sums and nothing to the rest; averages divide by all."""
    arrays = [tensor.of(rank) for rank in range(len(batches))]
    if op in (AVERAGE, SUM):
        arrays = [a if batch < batches[rank] else np.zeros_like(a) for rank, a in enumerate(arrays)]
    else:
        arrays = [a for rank, a in enumerate(arrays) if batch < batches[rank]]
    return oracle.reduced(op, arrays, count=len(batches))


@every_frontend
@every_world
@every_op
@pytest.mark.parametrize("case", BATCHES)
def test_uneven_batches(world: Workers, frontend: str, case: str, op: int) -> None:
    batches = BATCHES[case][: len(world.pids)]
    results = world.run(_batches, frontend, batches, op, "unnamed" not in case)
    wanted = [
        _reduced_with_joined(op, tensor, batches, batch)
        for batch in range(max(batches))
        for tensor in _tensors(batch)
    ]
    problems = [
        f"rank {rank} batch {i // len(DTYPES)} {array.dtype}: {text}"
        for rank, (arrays, _, _) in enumerate(results)
        for i, (array, right) in enumerate(zip(arrays, wanted[: batches[rank] * len(DTYPES)], strict=True))
        if (text := oracle.difference(array, right))
    ]
    assert not problems, "\n".join(problems)
    assert {last for _, last, _ in results} == {int(np.argmax(batches))}
    assert [after for _, _, after in results] == [len(results)] * len(results)


def _batches(frontend: str, batches: tuple[int, ...], op: int, named: bool) -> tuple[list[Array], int, float]:
    front = frontend_of(frontend)
    hvd = front.hvd
    results = []
    for batch in range(batches[hvd.rank()]):
        for tensor in _tensors(batch):
            name = f"{tensor.dtype} {tensor.shape}" if named else None  # the same in every other batch
            given = front.tensor(tensor.of(hvd.rank()))
            results.append(front.array(hvd.allreduce(given, op=op, name=name)))
    last = hvd.join()
    after = front.array(hvd.allreduce(front.tensor(np.ones(1)), op=hvd.Sum))
    return results, last, float(after[0])


@every_frontend
@on_worlds(1, 2, 3, 4)
def test_again_and_again(world: Workers, frontend: str) -> None:
    """The last one changes from round to round; unnamed operations match after each."""
    size = len(world.pids)
    assert world.run(_rounds, frontend) == [[round_ % size for round_ in range(10)]] * size


def _rounds(frontend: str) -> list[int]:
    front = frontend_of(frontend)
    hvd = front.hvd
    lasts = []
    for round_ in range(10):
        late = hvd.rank() == round_ % hvd.size()
        for batch in range(4 if late else hvd.rank() % 3):
            array = np.full(5, batch + 1.0)
            result = front.array(hvd.allreduce(front.tensor(array), op=hvd.Max))
            assert result.tolist() == array.tolist(), (round_, batch, result)
        lasts.append(hvd.join())
        everybody = front.array(hvd.allgather(front.tensor(np.array([hvd.rank()]))))
        assert everybody.tolist() == list(range(hvd.size())), (round_, everybody)
    return lasts


@every_frontend
@on_worlds(2, 3, 4)
@pytest.mark.parametrize("last", [0, 1])
def test_the_last_is_told_to_all(world: Workers, frontend: str, last: int) -> None:
    assert world.run(_join_late, frontend, last) == [last] * len(world.pids)


def _join_late(frontend: str, last: int) -> int:
    hvd = frontend_of(frontend).hvd
    hvd.barrier()
    if hvd.rank() == last:
        time.sleep(0.3)
    return hvd.join()


@every_frontend
@on_worlds(2, 3)
def test_groups_and_operations_in_flight(world: Workers, frontend: str) -> None:
    results = world.run(_groups_while_joined, frontend)
    assert results == [results[0]] * len(results)


def _groups_while_joined(frontend: str) -> int:
    front = frontend_of(frontend)
    hvd = front.hvd
    if hvd.rank() != 0:
        alive = hvd.size() - 1
        handles = [
            hvd.allreduce_async(front.tensor(np.ones(n)), name=f"flight {n}", op=hvd.Sum) for n in (3, 2000)
        ]
        group = hvd.grouped_allreduce([front.tensor(np.ones(2, "f4")), front.tensor(np.ones(5, "i4"))], op=1)
        scaled = hvd.allreduce(
            front.tensor(np.ones(4)), op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0
        )
        assert [front.array(t).tolist() for t in group] == [[alive] * 2, [alive] * 5]
        assert front.array(scaled).tolist() == [6.0 * alive] * 4
        for handle in handles:
            assert set(front.array(hvd.synchronize(handle)).tolist()) == {alive}
    return int(hvd.join())


REFUSED = {
    "allgather": lambda front: front.hvd.allgather(front.tensor(np.ones(3))),
    "grouped_allgather": lambda front: front.hvd.grouped_allgather([front.tensor(np.ones(3))] * 2),
    "broadcast": lambda front: front.hvd.broadcast(front.tensor(np.ones(3)), 1),
    "broadcast from who joined": lambda front: front.hvd.broadcast(front.tensor(np.ones(3)), 0),
    "alltoall": lambda front: front.hvd.alltoall(front.tensor(np.ones(front.hvd.size()))),
    "reducescatter": lambda front: front.hvd.reducescatter(front.tensor(np.ones(5000))),
    "grouped_reducescatter": lambda front: front.hvd.grouped_reducescatter([front.tensor(np.ones(9))]),
}


@every_frontend
@on_worlds(2, 3)
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("pending", [False, True], ids=["joined before", "joined meanwhile"])
def test_other_operations_are_refused(world: Workers, frontend: str, case: str, pending: bool) -> None:
    results = world.run(_refused_while_joined, frontend, REFUSED[case], pending)
    outcomes = [outcome for _, outcome in results[1:]]
    assert_raised(outcomes, "MismatchError", "join")
    assert len({outcome.message for outcome in outcomes}) == 1
    assert len({last for last, _ in results}) == 1


def _refused_while_joined(frontend: str, call: Any, pending: bool) -> tuple[int, Raised | None]:
    front = frontend_of(frontend)
    hvd = front.hvd
    outcome = None
    if hvd.rank() == 0:
        time.sleep(0.1 if pending else 0.0)
    else:
        time.sleep(0.0 if pending else 0.1)
        outcome = error_of(call, front)
        total = front.array(hvd.allreduce(front.tensor(np.ones(3)), op=hvd.Sum))
        assert total.tolist() == [hvd.size() - 1.0] * 3
    last = hvd.join()
    total = front.array(hvd.allreduce(front.tensor(np.ones(3)), op=hvd.Sum))
    assert total.tolist() == [hvd.size()] * 3
    return last, outcome
