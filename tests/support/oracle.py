"""What collectives must give, computed by numpy in the test process, and the one comparison of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
AVERAGE, SUM = 0, 1


def values(dtype: str, shape: int | tuple[int, ...], rank: int, seed: int = 0) -> Array:
    """The input of one rank: the same in the worker and in the test."""
    random = np.random.default_rng([seed, rank])
    if np.dtype(dtype).kind == "i":
        return np.asarray(random.integers(-1000, 1000, shape), dtype)
    return np.asarray(random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape), dtype)


def inputs(dtype: str, shape: int | tuple[int, ...], size: int, seed: int = 0) -> list[Array]:
    """The inputs of all ranks."""
    return [values(dtype, shape, rank, seed) for rank in range(size)]


def canonical_sum(arrays: Sequence[Array]) -> Array:
    """The sum in the one order that all ranks must use: ((r0 + r1) + r2) + ..."""
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            total = np.asarray(total + array, total.dtype)
    return total


def tolerance(dtype: npt.DTypeLike, size: int) -> float:
    """The allowed error relative to the sum of magnitudes: a rounding for each addition and scaling."""
    kind = np.dtype(dtype)
    return 0.0 if kind.kind == "i" else float(np.finfo(kind).eps) * (size + 4)


def reduced(
    arrays: Sequence[Array], op: int, prescale: float = 1.0, postscale: float = 1.0
) -> tuple[Array, Array]:
    """The exact result of an allreduce, and the magnitude that its rounding errors are relative to."""
    count = len(arrays)
    if arrays[0].dtype.kind == "i":
        return _reduced_integers(arrays, op, prescale, postscale), np.ones(arrays[0].shape)
    divisor = count if op == AVERAGE else 1
    wide = np.longdouble
    factor = wide(prescale) * wide(postscale) / divisor
    exact = sum(array.astype(wide) for array in arrays) * factor
    magnitude = sum(np.abs(array.astype(wide)) for array in arrays) * abs(factor)
    return np.asarray(exact), np.asarray(magnitude)


def _reduced_integers(arrays: Sequence[Array], op: int, prescale: float, postscale: float) -> Array:
    dtype = arrays[0].dtype
    scaled = arrays if prescale == 1.0 else [np.trunc(array * prescale).astype(dtype) for array in arrays]
    total = canonical_sum(scaled)
    if op == AVERAGE and postscale == 1.0:
        quotient = np.abs(total) // len(arrays)  # abs of the lowest integer does not occur in the tests
        return np.asarray(np.sign(total) * quotient, dtype)
    divisor = len(arrays) if op == AVERAGE else 1
    return total if postscale == divisor == 1 else np.trunc(total * postscale / divisor).astype(dtype)


def assert_reduced(
    results: Sequence[Array], arrays: Sequence[Array], op: int, prescale: float = 1.0, postscale: float = 1.0
) -> None:
    """Every rank has the same bits, and they are the allreduce of ``arrays``."""
    assert_all_equal(results)
    exact, magnitude = reduced(arrays, op, prescale, postscale)
    result = results[0]
    assert result.dtype == arrays[0].dtype
    assert result.shape == arrays[0].shape
    error = np.abs(result.astype(exact.dtype) - exact)
    bound = tolerance(result.dtype, len(arrays)) * magnitude
    assert np.all(error <= bound), f"off by up to {np.max(error - bound)} more than allowed"


def assert_all_equal(results: Sequence[Array]) -> None:
    """Every rank has the same bits, type and shape."""
    first = results[0]
    for rank, result in enumerate(results):
        described = (result.dtype, result.shape, result.tobytes() == first.tobytes())
        assert described == (first.dtype, first.shape, True), f"rank {rank} differs from rank 0"


def assert_bytes(results: Sequence[Array], expected: Array) -> None:
    """Every rank has exactly the bits of ``expected``."""
    assert_all_equal(results)
    differing = np.flatnonzero(_bits(results[0]) != _bits(expected))
    assert differing.size == 0, (
        f"{differing.size} of {expected.nbytes} bytes differ, the first at {differing[0]}"
    )
    assert results[0].shape == expected.shape


def _bits(array: Array) -> Array:
    return np.frombuffer(array.tobytes(), np.uint8)
