"""Collective calls as data: what every rank gives and asks for. Made in the test, run in the workers."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OP_NAMES = ("average", "sum", "adasum", "min", "max", "product")
REDUCTIONS = (AVERAGE, SUM, MIN, MAX, PRODUCT)

INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
NUMBERS = (*INTEGERS, *FLOATS)
DTYPES = (*NUMBERS, "bool")

FORMS = ("", "_", "_async", "_async_")
"""What a function's name ends in: plain, in place, and both without waiting."""

SMALL = 1 << 12
"""Elements of tensors that are drawn once and kept: most tests give the same ones."""

LAYOUTS = ("strided", "transposed", "reversed", "fortran", "columns", "read-only")


def dtype_of(name: str) -> np.dtype[Any]:
    """A type by its name, which numpy does not know of all."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True)
class Tensor:
    """What the ranks give: random, but the same whenever it is made."""

    dtype: str
    shape: Shape = (7, 5)
    rows: tuple[int, ...] = ()
    """The first dimension by rank, where it differs."""
    seed: int = 0
    data: str = "random"
    """Or "special": NaN, infinities, zeros of both signs, the smallest and largest; or "zeros"."""
    layout: str = "plain"

    def of(self, rank: int) -> Array:
        """The array of one rank."""
        shape = (self.rows[rank], *self.shape[1:]) if self.rows else self.shape
        make = {"random": _random, "special": _special, "zeros": _zeros}[self.data]
        return laid_out(make(self.dtype, shape, rank, self.seed), self.layout)


@dataclass(frozen=True)
class Call:
    """One operation of some ranks."""

    label: str
    kind: str
    tensors: tuple[Tensor, ...]
    form: str = ""
    name: str | None = None
    op: int | None = None
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    splits: tuple[tuple[int, ...], ...] | None = None
    """By rank, for the members of the set."""
    compression: str = "none"
    members: tuple[int, ...] | None = None
    """The ranks of the process set; all if ``None``."""

    @property
    def waits(self) -> bool:
        """Whether the function returns a result, not a handle."""
        return "async" not in self.form

    @property
    def in_place(self) -> bool:
        """Whether the result is the given tensor."""
        return self.form.endswith("_")

    @property
    def grouped(self) -> bool:
        """Whether it takes a list."""
        return self.kind.startswith("grouped_")

    @property
    def base(self) -> str:
        """The operation of one tensor."""
        return self.kind.removeprefix("grouped_")

    def ranks(self, size: int) -> tuple[int, ...]:
        """Who takes part."""
        return self.members if self.members is not None else tuple(range(size))


def relabelled(calls: Iterable[Call], prefix: str) -> list[Call]:
    """The same calls under names that say more."""
    return [replace(call, label=f"{prefix} {call.label}") for call in calls]


def _random(dtype: str, shape: Shape, rank: int, seed: int) -> Array:
    if np.prod(shape, dtype=int) > SMALL:
        return _drawn(dtype, shape, rank, seed)
    return _drawn_once(dtype, shape, rank, seed).copy()


def _drawn(dtype: str, shape: Shape, rank: int, seed: int) -> Array:
    random = np.random.default_rng([seed, rank])
    kind = dtype_of(dtype)
    if kind.kind == "b":
        return np.asarray(random.integers(0, 2, shape), bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        wide = random.integers(limits.min, limits.max, shape, kind, endpoint=True)
        small = random.integers(0 if kind.kind == "u" else -30, 30, shape, kind)
        return np.asarray(np.where(random.random(shape) < 0.3, wide, small), kind)
    numbers = random.standard_normal(shape, "f4") * np.float32(10) ** random.integers(-3, 4, shape, "i1")
    return np.asarray(numbers).astype(kind)


_drawn_once = functools.lru_cache(8192)(_drawn)


def _zeros(dtype: str, shape: Shape, rank: int, seed: int) -> Array:  # noqa: ARG001
    return np.zeros(shape, dtype_of(dtype))


@functools.cache
def _specials(dtype: str) -> Array:
    kind = dtype_of(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return np.array([0, 1, 2, limits.max, limits.max - 1, limits.min, limits.min + 1, 3], kind)
    limits = ml_dtypes.finfo(kind)
    tiny, least, most = (float(x) for x in (limits.tiny, limits.smallest_subnormal, limits.max))
    plain = np.array([0.0, 1.0, tiny, least, most, 1.5, np.inf, np.nan], np.float64).astype(kind)
    return np.concatenate([plain, -plain])


def _special(dtype: str, shape: Shape, rank: int, seed: int) -> Array:
    """Random draws: with some thousands of elements, every pair of neighbours gets every pair of values."""
    if dtype == "bool":
        return _random(dtype, shape, rank, seed)
    return np.random.default_rng([seed, rank, 77]).choice(_specials(dtype), shape)


def laid_out(array: Array, layout: str) -> Array:
    """The same values, elsewhere in memory."""
    if layout == "plain":
        return array
    if layout == "read-only":
        array.flags.writeable = False
        return array
    rows, columns = array.shape
    base = np.zeros((rows * 2, columns * 2), array.dtype)
    view = {
        "strided": base[::2, ::2],
        "transposed": np.zeros((columns, rows), array.dtype).T,
        "reversed": base[:rows, :columns][::-1],
        "fortran": np.zeros(array.shape, array.dtype, order="F"),
        "columns": base[:rows, :columns],
    }[layout]
    view[...] = array
    return view
