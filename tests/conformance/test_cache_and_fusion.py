"""Names that come again, with the same and with other parameters; without a cache, with a small one; and
without fusion or with little of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conformance.calls import AVERAGE, MAX, MIN, SUM, Call, Tensor, relabelled
from tests.conformance.marks import every_frontend, on_worlds
from tests.conformance.table import prove
from tests.support.world import PLANES, Workers, WorldKey

SETTINGS = (
    {},
    {"HOROVOD_CACHE_CAPACITY": "0"},
    {"HOROVOD_CACHE_CAPACITY": "2"},
    {"HOROVOD_FUSION_THRESHOLD": "0"},
    {"HOROVOD_FUSION_THRESHOLD": "10000"},
    {"HOROVOD_DISABLE_GROUP_FUSION": "1"},
)

every_setting = pytest.mark.parametrize(
    "world",
    [WorldKey(3, plane, tuple(setting.items())) for setting in SETTINGS for plane in PLANES],
    ids=str,
    indirect=True,
)

SIZE = 7  # rows and splits for as many ranks; smaller worlds use some of them


def _splits(size: int, shift: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple((rank + other + shift) % 3 for other in range(size)) for rank in range(size))


def _alltoall(label: str, size: int, shift: int, dtype: str = "float32", rest: tuple[int, ...] = ()) -> Call:
    splits = _splits(size, shift)
    tensor = Tensor(dtype, (0, *rest), tuple(sum(row) for row in splits))
    return Call(label, "alltoall", (tensor,), splits=splits)


def variants(size: int) -> dict[str, list[Call]]:
    """For each kind, calls that differ in one parameter each."""
    plain = Call("plain", "allreduce", (Tensor("float32", (40,)),), op=SUM)
    gather = Call("plain", "allgather", (Tensor("float32", (0, 3), tuple(range(1, SIZE + 1))),))
    scatter = Call("plain", "reducescatter", (Tensor("float32", (10, 3)),), op=SUM)
    group = Call("plain", "grouped_allreduce", (Tensor("float32", (4,)), Tensor("int32", (700,))), op=SUM)
    sent = Call("plain", "broadcast", (Tensor("float32", (40,)),))
    gathered = Call("plain", "grouped_allgather", (*gather.tensors, Tensor("uint8", (5,))))
    return {
        "allreduce": [
            plain,
            replace(plain, label="dtype", tensors=(Tensor("int16", (40,)),)),
            replace(plain, label="shape", tensors=(Tensor("float32", (5, 8)),)),
            replace(plain, label="large", tensors=(Tensor("float32", (4000,)),)),
            replace(plain, label="op", op=MAX),
            replace(plain, label="average", op=AVERAGE),
            replace(plain, label="prescale", prescale=0.5),
            replace(plain, label="postscale", postscale=0.5),
            replace(plain, label="compression", compression="fp16"),
            replace(plain, label="in place", form="_"),
        ],
        "grouped allreduce": [
            group,
            replace(group, label="op", op=MIN),
            replace(group, label="shape", tensors=(Tensor("float32", (5,)), group.tensors[1])),
            replace(group, label="dtype", tensors=(Tensor("float64", (4,)), group.tensors[1])),
            replace(group, label="size", tensors=(*group.tensors, Tensor("float32", (9,)))),
            replace(group, label="scale", prescale=2.0),
        ],
        "allgather": [
            gather,
            replace(gather, label="rows", tensors=(Tensor("float32", (0, 3), tuple(range(SIZE, 0, -1))),)),
            replace(gather, label="no rows", tensors=(Tensor("float32", (0, 3), (0,) * SIZE),)),
            replace(gather, label="rest", tensors=(Tensor("float32", (0, 500), gather.tensors[0].rows),)),
            replace(gather, label="dtype", tensors=(Tensor("bool", (0, 3), gather.tensors[0].rows),)),
        ],
        "grouped allgather": [
            gathered,
            replace(gathered, label="rows", tensors=(Tensor("float32", (0, 3), (2,) * SIZE),) * 2),
            replace(gathered, label="size", tensors=gathered.tensors[:1]),
        ],
        "alltoall": [
            _alltoall("plain", size, 0),
            _alltoall("splits", size, 1),
            _alltoall("dtype", size, 0, "float16"),
            _alltoall("rest", size, 0, rest=(900,)),
            Call("even", "alltoall", (Tensor("float32", (2 * size,)),)),
        ],
        "reducescatter": [
            scatter,
            replace(scatter, label="op", op=AVERAGE),
            replace(scatter, label="shape", tensors=(Tensor("float32", (11, 3)),)),
            replace(scatter, label="dtype", tensors=(Tensor("int8", (10, 3)),)),
            replace(scatter, label="scale", postscale=3.0),
        ],
        "broadcast": [
            sent,
            replace(sent, label="root", root=size - 1),
            replace(sent, label="dtype", tensors=(Tensor("bool", (40,)),)),
            replace(sent, label="shape", tensors=(Tensor("float32", (4, 1000)),)),
        ],
    }


def _rounds(kind: str, size: int) -> list[Call]:
    """Each variant thrice, between the first one; all under one name."""
    first, *others = variants(size)[kind]
    calls = [first, first, first]
    for other in others:
        calls += [other, other, first, other]
    return [replace(call, label=f"{i} {call.label}", name=f"again {kind}") for i, call in enumerate(calls)]


KINDS = tuple(variants(2))


@every_frontend
@every_setting
@pytest.mark.parametrize("kind", KINDS)
def test_one_name_again_and_again(world: Workers, frontend: str, kind: str) -> None:
    prove(world, frontend, _rounds(kind, len(world.pids)))


@every_frontend
@on_worlds(1, 2, 4, 7)
@pytest.mark.parametrize("kind", KINDS)
def test_one_name_in_other_worlds(world: Workers, frontend: str, kind: str) -> None:
    prove(world, frontend, _rounds(kind, len(world.pids)))


@every_frontend
@every_setting
def test_all_kinds_at_once(world: Workers, frontend: str) -> None:
    """Each kind under many names, all in flight, submitted in random order; the next time they are known."""
    size = len(world.pids)
    calls = [
        replace(call, label=f"{kind} {call.label}", name=f"{kind} {call.label}", form="_async")
        for kind, some in variants(size).items()
        for call in some
    ]
    for round_ in range(4):
        orders = [
            np.random.default_rng([rank, round_]).permutation(len(calls)).tolist() for rank in range(size)
        ]
        prove(world, frontend, relabelled(calls, f"round {round_}"), orders=orders)
