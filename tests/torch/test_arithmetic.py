"""Reductions in torch, against the conformance suite's oracle in numpy; on many values, without any world."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from horovod.torch import _arithmetic as arithmetic
from horovod.torch._work import DTYPES
from tests.conformance import oracle
from tests.conformance.calls import AVERAGE, MAX, MIN, NUMBERS, PRODUCT, REDUCTIONS, SUM, Tensor, dtype_of

RANKS = 4


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """The same bits."""
    if array.dtype == dtype_of("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The same bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtype_of("bfloat16"))
    return tensor.numpy()


@pytest.mark.parametrize("data", ["random", "special"])
@pytest.mark.parametrize(("before", "after"), [(1.0, 1.0), (0.3, 1.0), (1.0, -2.7), (1e6, 1e-3)])
@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_bit_for_bit(dtype: str, op: int, before: float, after: float, data: str) -> None:
    arrays = [Tensor(dtype, (5000,), seed=3, data=data).of(rank) for rank in range(RANKS)]
    rows = [arithmetic.prescaled(tensor_of(array), before) for array in arrays]
    got = array_of(arithmetic.reduced(op, rows, after, RANKS))
    assert oracle.difference(got, oracle.reduced(op, arrays, before, after)) == ""


@pytest.mark.parametrize("compression", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("data", ["random", "special"])
def test_types_of_the_wire(dtype: str, compression: int, data: str) -> None:
    """Rounded once, also from float64, for which torch takes two steps."""
    array = Tensor(dtype, (20_000,), seed=5, data=data).of(0)
    wire = arithmetic.wire_type(DTYPES[dtype], compression)
    got = arithmetic.one_nan(arithmetic.travelling(tensor_of(array), wire))
    wanted = oracle.one_nan(oracle.rounded(array, oracle.WIRE["fp16" if compression == 1 else "bf16"]))
    assert oracle.difference(array_of(got), wanted) == ""


@pytest.mark.parametrize("op", [SUM, AVERAGE, MIN, MAX, PRODUCT])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_neutral_elements(dtype: str, op: int) -> None:
    tensor = tensor_of(Tensor(dtype, (5000,), seed=7, data="special").of(0))
    nothing = arithmetic.neutral(op, [5000], tensor.dtype, tensor.device)
    for rows in ([nothing, tensor], [tensor, nothing]):
        got = arithmetic.reduced(SUM if op == AVERAGE else op, rows, 1.0, 2)
        same = array_of(got) == array_of(arithmetic.one_nan(tensor))
        assert np.all(same | (array_of(got) != array_of(got)))


@pytest.mark.parametrize("op", [MIN, MAX])
def test_neutral_elements_of_bool(op: int) -> None:
    tensor = torch.tensor([False, True])
    nothing = arithmetic.neutral(op, [2], torch.bool, tensor.device)
    assert arithmetic.reduced(op, [nothing, tensor], 1.0, 2).tolist() == [False, True]
