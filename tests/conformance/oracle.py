"""What every rank must get, computed by numpy alone; nothing here comes from the package.

Reductions take the ranks in order, ((r0 op r1) op r2) ..., in the tensors' own type, float16 and bfloat16 in
float32; they scale once before and once after, and halves are rounded once at the end (and after a prescale,
for they travel as halves). There is one NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tests.conformance.calls import ADASUM, AVERAGE, MIN, PRODUCT, SUM, Array, Call

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WIRE = {"fp16": np.dtype(np.float16), "bf16": BFLOAT16}


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether arithmetic goes through float32."""
    return dtype in (np.dtype(np.float16), BFLOAT16)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is one of the four floating types."""
    return is_half(dtype) or dtype.kind == "f"


def rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    """The nearest values of a floating type, ties to even, in one step."""
    with np.errstate(all="ignore"):
        if array.dtype == np.float64 and dtype == BFLOAT16:
            array = _rounded_to_odd(array)  # a plain step through float32 could round twice
        return np.asarray(array.astype(dtype))


def _rounded_to_odd(array: Array) -> Array:
    """float64 as float32, what is inexact to the neighbour with an odd last bit, for another rounding."""
    narrow = array.astype(np.float32)
    inexact = np.isfinite(narrow) & (narrow.astype(np.float64) != array)
    toward_zero = np.where(np.abs(narrow.astype(np.float64)) > np.abs(array), np.nextafter(narrow, 0), narrow)
    bits = np.asarray(toward_zero, np.float32, order="C").view(np.uint32)
    return np.where(inexact, (bits | 1).view(np.float32), narrow).astype(np.float32)


def one_nan(array: Array) -> Array:
    """The array with every NaN made the positive quiet one without payload."""
    if not is_float(array.dtype):
        return array
    result = array.copy()
    result[np.isnan(array)] = np.nan
    return result


def scaled(array: Array, factor: float, divisor: int = 1) -> Array:
    """``array * factor / divisor`` in its own type; integers toward zero, to the limits of the type."""
    if factor == 1.0 and divisor == 1:
        return array
    dtype = array.dtype
    with np.errstate(all="ignore"):
        if dtype.kind == "f":
            return np.asarray(array * dtype.type(factor / divisor))
        if factor == 1.0:
            quotient = array // dtype.type(divisor)
            remains = array - quotient * dtype.type(divisor) != 0
            return np.asarray(quotient + ((array < 0) & remains), dtype)
        return _into(np.trunc(array.astype(np.float64) * factor / divisor), dtype)


def _into(numbers: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    within = (numbers >= float(limits.min)) & (numbers < float(limits.max) + (limits.max < 2**53))
    inside = np.where(within, numbers, 0.0).astype(dtype)
    return np.where(within, inside, np.where(numbers > 0, limits.max, limits.min)).astype(dtype)


def combined(op: int, a: Array, b: Array) -> Array:
    """Of two ranks' elements, the lower rank's on the left."""
    with np.errstate(all="ignore"):
        if op == PRODUCT:
            return np.asarray(a * b, a.dtype)
        if op in (SUM, AVERAGE):
            return np.asarray(a + b, a.dtype)
        right = b < a if op == MIN else b > a  # on a tie, as of two zeros, the left one stays
        result = np.where(right, b, a)
        if a.dtype.kind == "f":
            result = np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), result)
        return np.asarray(result, a.dtype)


def reduced(
    op: int,
    arrays: Sequence[Array],
    prescale: float = 1.0,
    postscale: float = 1.0,
    compression: str = "none",
    count: int | None = None,
) -> Array:
    """An allreduce; ``count`` is what an average divides by, if not the number of arrays."""
    dtype = arrays[0].dtype
    if op == ADASUM:
        return adasum([_prescaled(array, prescale) for array in arrays], postscale)
    wire = WIRE[compression] if compression != "none" and dtype.kind == "f" and not is_half(dtype) else dtype
    travelling = [_prescaled(array, prescale) for array in arrays]
    if wire != dtype:
        travelling = [rounded(array, wire) for array in travelling]
    wide = [array.astype(np.float32) if is_half(wire) else array for array in travelling]
    result = wide[0]
    for array in wide[1:]:
        result = combined(op, result, array)
    result = scaled(result, postscale, (count or len(arrays)) if op == AVERAGE else 1)
    if is_half(wire):
        result = rounded(result, wire)
    return one_nan(np.asarray(result.astype(dtype)))


def _prescaled(array: Array, factor: float) -> Array:
    if factor == 1.0:
        return array
    if is_half(array.dtype):
        return rounded(scaled(array.astype(np.float32), factor), array.dtype)
    return scaled(array, factor)


def adasum(arrays: Sequence[Array], postscale: float = 1.0) -> Array:
    """Neighbours combine, then the results do, and so on; in float32 of halves."""
    dtype = arrays[0].dtype
    level = [array.astype(np.float32) if is_half(dtype) else array for array in arrays]
    while len(level) > 1:
        level = [_adasum_of_two(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    result = scaled(level[0], postscale)
    return np.asarray(rounded(result, dtype) if is_half(dtype) else result)


def _adasum_of_two(a: Array, b: Array) -> Array:
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    aa, ab, bb = dot(wide_a, wide_a), dot(wide_a, wide_b), dot(wide_b, wide_b)
    by_a = 1.0 - ab / (2.0 * aa) if aa != 0.0 else 1.0
    by_b = 1.0 - ab / (2.0 * bb) if bb != 0.0 else 1.0
    return np.asarray((wide_a * by_a + wide_b * by_b).astype(a.dtype))


def dot(a: Array, b: Array) -> float:
    """In eight lanes, element i in lane i % 8."""
    products = (a * b).ravel()
    padded = np.concatenate([products, np.zeros(-len(products) % 8)]).reshape(-1, 8)
    lanes = np.zeros(8) if len(padded) == 0 else np.add.accumulate(padded, axis=0)[-1]
    l0, l1, l2, l3, l4, l5, l6, l7 = (float(lane) for lane in lanes)
    return ((l0 + l1) + (l2 + l3)) + ((l4 + l5) + (l6 + l7))


def shares(rows: int, count: int) -> list[tuple[int, int]]:
    """The rows that each of ``count`` members gets of a reducescatter."""
    sizes = [rows // count + (1 if index < rows % count else 0) for index in range(count)]
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def exchanged(arrays: Sequence[Array], splits: Sequence[Sequence[int]]) -> list[list[Array]]:
    """An alltoall: what each member receives, and how many rows from whom."""
    starts = [np.concatenate([[0], np.cumsum(row)]).astype(int).tolist() for row in splits]
    results = []
    for me in range(len(arrays)):
        parts = [
            array[start[me] : start[me] + row[me]]
            for array, start, row in zip(arrays, starts, splits, strict=True)
        ]
        results.append([np.concatenate(parts), np.array([row[me] for row in splits], np.int32)])
    return results


def expected(call: Call, size: int) -> list[list[Array] | None]:
    """The results of all ranks; ``None`` for a rank that does not take part."""
    ranks = call.ranks(size)
    by_tensor = [_expected_of_one(call, [t.of(rank) for rank in ranks], ranks) for t in call.tensors]
    by_member = [[array for results in by_tensor for array in results[m]] for m in range(len(ranks))]
    if call.base == "alltoall" and call.splits is None and call.waits:
        by_member = [[output] for output, _ in by_member]  # asked for nothing, told nothing
    return [by_member[ranks.index(rank)] if rank in ranks else None for rank in range(size)]


def _expected_of_one(call: Call, arrays: list[Array], ranks: tuple[int, ...]) -> list[list[Array]]:
    count = len(arrays)
    if call.base == "allgather":
        return [[np.concatenate(arrays)]] * count
    if call.base == "broadcast":
        return [[arrays[ranks.index(call.root)]]] * count
    if call.base == "alltoall":
        even = [[len(array) // count] * count for array in arrays]
        return exchanged(arrays, even if call.splits is None else [call.splits[rank] for rank in ranks])
    op = AVERAGE if call.op is None else call.op
    whole = reduced(op, arrays, call.prescale, call.postscale, call.compression)
    if call.base == "allreduce":
        return [[whole]] * count
    return [[whole[begin:end]] for begin, end in shares(len(whole), count)]


def difference(got: Array, wanted: Array) -> str:
    """How two arrays differ; empty if every bit is the same."""
    if not isinstance(got, np.ndarray):
        return f"a {type(got).__name__} is no array"
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return f"{got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if got.tobytes() == wanted.tobytes():
        return ""
    bits = [np.ascontiguousarray(a).reshape(-1).view(f"u{a.itemsize}") for a in (got, wanted)]
    where = np.flatnonzero(bits[0] != bits[1])
    first = int(where[0])
    values = [
        f"{a.reshape(-1)[first]} ({int(b[first]):#x})" for a, b in zip((got, wanted), bits, strict=True)
    ]
    return f"{len(where)} of {got.size} elements, the first at {first}: {values[0]} instead of {values[1]}"
