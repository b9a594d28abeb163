"""Lists and plain numbers are as good as arrays, where nothing is done in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.support.marks import on_worlds
from tests.support.world import Workers

# What two ranks call, and the type and values that both get.
CALLS: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "allreduce of numbers": (lambda: hvd.allreduce([2.5, 3.5], op=hvd.Sum), "float64", [5.0, 7.0]),
    "allreduce of an integer": (lambda: hvd.allreduce(3, op=hvd.Sum), "int64", 6),
    "allreduce of a float": (lambda: hvd.allreduce(2.5, op=hvd.Product), "float64", 6.25),
    "allreduce of a truth": (lambda: hvd.allreduce(hvd.rank() == 1, op=hvd.Max), "bool", True),
    "allgather": (lambda: hvd.allgather([[hvd.rank()]]), "int64", [[0], [1]]),
    "allgather of nothing": (lambda: hvd.allgather([]), "float64", []),
    "broadcast": (lambda: hvd.broadcast([hvd.rank(), 7], 1), "int64", [1, 7]),
    "broadcast of a number": (lambda: hvd.broadcast(hvd.rank() + 0.5, 1), "float64", 1.5),
    "alltoall": (lambda: hvd.alltoall([4, 4]), "int64", [4, 4]),
    "alltoall with splits": (lambda: hvd.alltoall([True, True], [1, 1])[0], "bool", [True, True]),
    "reducescatter": (lambda: hvd.reducescatter([1.0, 1.0], op=hvd.Sum), "float64", [2.0]),
    "grouped_allreduce": (lambda: hvd.grouped_allreduce([[1], 2], op=hvd.Sum)[1], "int64", 4),
    "grouped_allgather": (lambda: hvd.grouped_allgather([[1], [2, 3]])[1], "int64", [2, 3, 2, 3]),
    "grouped_reducescatter": (lambda: hvd.grouped_reducescatter([[1.0, 1.0]])[0], "float64", [1.0]),
}


@on_worlds(2)
@pytest.mark.parametrize("case", CALLS)
def test_array_likes(world: Workers, case: str) -> None:
    call, dtype, wanted = CALLS[case]
    assert world.run(_described, call) == [(np.ndarray, dtype, wanted)] * 2


def _described(call: Callable[[], Any]) -> tuple[type, str, Any]:
    result = call()
    return type(result), str(result.dtype), result.tolist()
