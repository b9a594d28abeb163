"""What goes into a call and what must come out, without any peer."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from benchmarks import steps
from benchmarks.peers import Format, Operation, Peer
from benchmarks.peers.base import Array
from benchmarks.scenarios.operations import OPERATIONS

COUNT = 12 * 1000  # floats; divides by 2, 3 and 4, and its blocks are longer than the sample's stride


class _Rank:
    name, communicates = "somebody", True

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def _inputs(size: int, count: int = COUNT) -> list[Array]:
    return [steps.array(4 * count, "float32", rank, size) for rank in range(size)]


def _right(operation: Operation, inputs: list[Array], rank: int) -> Array:
    """What the operation means, in plain NumPy."""
    size = len(inputs)
    total: Array = np.add.reduce(inputs, axis=0)
    return {
        "allreduce": total,
        "allgather": np.concatenate(inputs),
        "broadcast": inputs[0],
        "alltoall": np.concatenate([np.split(given, size)[rank] for given in inputs]),
        "reducescatter": np.split(total, size)[rank],
    }[operation]


def _check(operation: Operation, rank: int, inputs: list[Array], result: Array) -> None:
    steps.check(cast(Peer, _Rank(rank, len(inputs))), operation, [inputs[rank]], result)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("operation", ["allreduce", *OPERATIONS])
def test_a_right_result_passes(operation: Operation, size: int) -> None:
    inputs = _inputs(size)
    _check(operation, size - 1, inputs, _right(operation, inputs, size - 1))


@pytest.mark.parametrize("operation", ["allreduce", *OPERATIONS])
def test_blocks_in_the_wrong_order_do_not(operation: Operation) -> None:
    inputs = _inputs(3)
    right = _right(operation, inputs, 1)
    wrong = right[::-1] if operation != "reducescatter" else _right(operation, inputs, 2)
    with pytest.raises(steps.WrongResult, match=f"somebody rank 1: {operation} should give"):
        _check(operation, 1, inputs, wrong)


def test_one_wrong_element_at_the_end_of_a_block_does_not() -> None:
    inputs = _inputs(4)
    wrong = _right("alltoall", inputs, 0)
    wrong[COUNT // 4 - 1] = -1
    with pytest.raises(steps.WrongResult, match=r"end in \[-1.0, 5.0"):
        _check("alltoall", 0, inputs, wrong)


@pytest.mark.parametrize("operation", ["allreduce", *OPERATIONS])
def test_an_unchanged_tensor_does_not(operation: Operation) -> None:
    inputs = _inputs(3)
    with pytest.raises(steps.WrongResult):
        _check(operation, 1, inputs, inputs[1])


@pytest.mark.parametrize("operation", ["allreduce", *OPERATIONS])
def test_a_result_of_another_length_does_not(operation: Operation) -> None:
    inputs = _inputs(2)
    right = _right(operation, inputs, 0)
    with pytest.raises(steps.WrongResult, match=f"{operation} gave {right.size // 2} elements of {COUNT}"):
        _check(operation, 0, inputs, right[::2])


@pytest.mark.parametrize("count", [1, 5])
def test_tensors_that_do_not_divide_are_one_block(count: int) -> None:
    inputs = _inputs(2, count)
    assert [given.tolist() for given in inputs] == [[1.0] * count, [2.0] * count]
    _check("allreduce", 0, inputs, inputs[0] + inputs[1])


@pytest.mark.parametrize("format", ["float32", "float16", "bfloat16", "fp16 wire"])
def test_an_input_has_as_many_bytes_as_asked_for(format: Format) -> None:
    if format == "bfloat16":
        pytest.importorskip("ml_dtypes")
    assert steps.array(4096, format, rank=1, size=4).nbytes == 4096
