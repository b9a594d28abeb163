"""The oracle itself, on examples that were worked out by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.conformance import oracle
from tests.conformance.calls import (
    ADASUM,
    AVERAGE,
    DTYPES,
    FLOATS,
    LAYOUTS,
    MAX,
    MIN,
    PRODUCT,
    SUM,
    Call,
    Tensor,
    dtype_of,
)

BF16 = ml_dtypes.bfloat16


def bits(array: np.ndarray) -> list[int]:
    return np.atleast_1d(array).view(f"u{array.itemsize}").tolist()


@pytest.mark.parametrize(
    ("op", "dtype", "rows", "wanted"),
    [
        (SUM, "int8", [[100], [100], [1]], [-55]),
        (SUM, "uint8", [[200], [100]], [44]),
        (AVERAGE, "int32", [[7, -7], [0, 0]], [3, -3]),
        (AVERAGE, "uint8", [[200], [100]], [22]),
        (AVERAGE, "int8", [[-128], [0], [0]], [-42]),
        (PRODUCT, "int16", [[300], [300]], [90000 - 65536]),
        (MIN, "int64", [[1, -5], [2, -6]], [1, -6]),
        (MAX, "uint16", [[1, 65535], [2, 0]], [2, 65535]),
        (MIN, "bool", [[True, True], [True, False]], [True, False]),
        (MAX, "bool", [[True, False], [True, False]], [True, False]),
        (SUM, "float32", [[1e8], [1.0], [-1e8]], [0.0]),
        (SUM, "float32", [[1e8], [-1e8], [1.0]], [1.0]),
        (SUM, "float16", [[2048], [1], [1]], [2050]),
        (SUM, "bfloat16", [[256], [1], [1]], [258]),
        (AVERAGE, "float64", [[1], [2], [6]], [9 * (1 / 3)]),
        (PRODUCT, "float16", [[300], [300], [2**-10]], [87.890625]),
    ],
)
def test_reductions(op: int, dtype: str, rows: list[list[float]], wanted: list[float]) -> None:
    kind = dtype_of(dtype)
    result = oracle.reduced(op, [np.array(row, kind) for row in rows])
    assert result.dtype == kind
    assert result.astype(float).tolist() == np.array(wanted, float).astype(kind).astype(float).tolist()


def test_the_lower_ranks_zero_stays() -> None:
    zeros = [np.array([0.0, -0.0], "f4"), np.array([-0.0, 0.0], "f4")]
    assert bits(oracle.reduced(MIN, zeros)) == [0, 0x80000000]
    assert bits(oracle.reduced(MAX, zeros)) == [0, 0x80000000]


@pytest.mark.parametrize("op", [MIN, MAX, SUM, PRODUCT])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("dtype", "given", "wanted"),
    [
        ("f4", 0xFFC12345, 0x7FC00000),
        ("f8", 0xFFF8000000012345, 0x7FF8000000000000),
        ("f2", 0xFE01, 0x7E00),
        (BF16, 0xFFC1, 0x7FC0),
    ],
    ids=str,
)
def test_there_is_one_nan(op: int, first: bool, dtype: object, given: int, wanted: int) -> None:
    kind = np.dtype(dtype)
    odd = np.array([given], f"u{kind.itemsize}").view(kind)
    pair = [odd, np.ones(1, kind)]
    assert bits(oracle.reduced(op, pair if first else pair[::-1])) == [wanted]


@pytest.mark.parametrize(
    ("dtype", "given", "factor", "divisor", "wanted"),
    [
        ("int32", [7, -7], 0.5, 1, [3, -3]),
        ("int32", [7, -7], 1.0, 2, [3, -3]),
        ("int32", [7, -7], 3.0, 4, [5, -5]),
        ("int8", [100, -100], 3.0, 1, [127, -128]),
        ("uint8", [3, 200], -1.0, 1, [0, 0]),
        ("int64", [2**62, -(2**62)], 4.0, 1, [2**63 - 1, -(2**63)]),
        ("uint16", [65535], 1.0, 7, [9362]),
        ("float32", [3.0], 0.1, 1, [float(np.float32(3) * np.float32(0.1))]),
    ],
)
def test_scaling(dtype: str, given: list[int], factor: float, divisor: int, wanted: list[float]) -> None:
    assert oracle.scaled(np.array(given, dtype), factor, divisor).tolist() == wanted


def test_prescaled_halves_travel_as_halves() -> None:
    given = [np.array([1.0], "f2"), np.array([1.0], "f2")]
    third = np.float32(np.float16(np.float32(1 / 3)))
    assert oracle.reduced(SUM, given, prescale=1 / 3)[0] == np.float16(third + third)


def test_compression_rounds_inputs_and_result() -> None:
    given = [np.array([2049.0], "f4"), np.array([2.0], "f4")]
    result = oracle.reduced(SUM, given, compression="fp16")
    assert (result.dtype, result[0]) == (np.float32, 2050.0)  # 2048 + 2
    assert oracle.reduced(SUM, [np.array([257.0], "f8")], compression="bf16")[0] == 256.0
    assert oracle.reduced(SUM, [np.array([257], "i4")], compression="bf16")[0] == 257


def test_rounding_in_one_step() -> None:
    just_above_a_tie = 1 + 2**-8 + 2**-40  # float32 would make it the tie, and the tie would go down
    assert float(oracle.rounded(np.array([just_above_a_tie, -just_above_a_tie]), oracle.BFLOAT16)[0]) > 1
    assert oracle.rounded(np.array([1 + 2**-8]), oracle.BFLOAT16)[0] == 1
    assert oracle.rounded(np.array([1e300, np.inf]), oracle.BFLOAT16).tolist() == [np.inf, np.inf]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,)], ids=str)
def test_shapes_stay(dtype: str, compression: str, shape: tuple[int, ...]) -> None:
    given = [Tensor(dtype, shape).of(rank) for rank in range(3)]
    assert oracle.reduced(MAX, given, compression=compression).shape == shape


def test_dot_has_eight_lanes() -> None:
    a = np.array([1e16, 1, 0, 0, 0, 0, 0, 0, 1, -1e16], "f8")
    # lane 0: 1e16 + 1 = 1e16; lane 1: 1 - 1e16 = -1e16 + 1 -> their sum is what the lanes lost or kept
    wanted = (1e16 + 1) + (1 - 1e16)
    assert oracle.dot(a, np.ones(10)) == wanted
    assert oracle.dot(np.zeros(0), np.zeros(0)) == 0


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]),  # at right angles: the sum
        ([[2.0, 4.0], [2.0, 4.0]], [2.0, 4.0]),  # alike: the average
        ([[0.0, 0.0], [3.0, 4.0]], [3.0, 4.0]),
        ([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
        ([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 2.0]], [1.0, 2.0]),
        ([[5.0, 7.0]], [5.0, 7.0]),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_adasum(rows: list[list[float]], wanted: list[float], dtype: str) -> None:
    kind = dtype_of(dtype)
    result = oracle.reduced(ADASUM, [np.array(row, kind) for row in rows])
    assert result.dtype == kind
    assert result.astype(float).tolist() == wanted


@pytest.mark.parametrize(
    ("rows", "count", "wanted"),
    [
        (7, 3, [(0, 3), (3, 5), (5, 7)]),
        (2, 3, [(0, 1), (1, 2), (2, 2)]),
        (0, 2, [(0, 0), (0, 0)]),
        (4, 1, [(0, 4)]),
    ],
)
def test_shares(rows: int, count: int, wanted: list[tuple[int, int]]) -> None:
    assert oracle.shares(rows, count) == wanted


def test_exchange() -> None:
    results = oracle.exchanged([np.array([0, 1, 2]), np.array([10, 11])], [[1, 2], [2, 0]])
    assert [[part.tolist() for part in result] for result in results] == [
        [[0, 10, 11], [1, 2]],
        [[1, 2], [2, 0]],
    ]
    assert results[0][1].dtype == np.int32


def test_operations_of_sets() -> None:
    tensor = Tensor("int32", (0, 2), rows=(1, 9, 2), seed=4)
    gathered = oracle.expected(Call("g", "allgather", (tensor,), members=(0, 2)), 3)
    assert gathered[1] is None
    assert gathered[0][0].tolist() == gathered[2][0].tolist()
    assert gathered[0][0].tolist() == [*tensor.of(0).tolist(), *tensor.of(2).tolist()]
    sent = oracle.expected(Call("b", "broadcast", (tensor,), root=2, members=(0, 2)), 3)
    assert sent[0][0].tolist() == tensor.of(2).tolist()


def test_a_waiting_alltoall_tells_splits_only_who_gives_some() -> None:
    tensor = Tensor("float32", (4,))
    assert [len(r) for r in oracle.expected(Call("", "alltoall", (tensor,)), 2)] == [1, 1]
    assert [len(r) for r in oracle.expected(Call("", "alltoall", (tensor,), form="_async"), 2)] == [2, 2]
    given = Call("", "alltoall", (tensor,), splits=((1, 0), (0, 3)))
    assert [[a.shape[0] for a in r] for r in oracle.expected(given, 2)] == [[1, 2], [3, 2]]


def test_difference() -> None:
    a = np.array([0.0, 1.0], "f4")
    assert oracle.difference(a, a.copy()) == ""
    assert "the first at 0: -0.0 (0x80000000) instead of 0.0 (0x0)" in oracle.difference(-a * 0, a * 0)
    assert "float32[2] instead of float64[2]" in oracle.difference(a, a.astype("f8"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["plain", *LAYOUTS])
@pytest.mark.parametrize("data", ["random", "special", "zeros"])
def test_tensors_are_the_same_whenever_they_are_made(dtype: str, layout: str, data: str) -> None:
    tensor = Tensor(dtype, (5, 4), seed=3, data=data, layout=layout)
    plain = Tensor(dtype, (5, 4), seed=3, data=data)
    assert tensor.of(2).tobytes() == plain.of(2).tobytes()
    assert (tensor.of(2).shape, tensor.of(2).dtype) == ((5, 4), dtype_of(dtype))
    assert data == "zeros" or plain.of(1).tobytes() != plain.of(2).tobytes()
