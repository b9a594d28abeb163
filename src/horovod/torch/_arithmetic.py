"""Reductions of tensors that are all here, on whatever device: what the engine's kernels do, in torch.

Ranks are taken in order, ((r0 op r1) op r2) ..., in the tensors' own type; halves in float32, rounded once at
the end. Integers are scaled through float64 and truncated toward zero. Every NaN is the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovod._core.reduction import Adasum, Average, Max, Min, Product

Tensor = torch.Tensor

HALVES = (torch.float16, torch.bfloat16)
WIRE = {1: torch.float16, 2: torch.bfloat16}
"""Types in which compressed floats travel, by the engine's number of the compression."""


def wire_type(dtype: torch.dtype, compression: int) -> torch.dtype:
    """The type in which tensors of a type travel."""
    return WIRE.get(compression, dtype) if dtype in (torch.float32, torch.float64) else dtype


def prescaled(tensor: Tensor, factor: float) -> Tensor:
    """``tensor * factor``, in its own type."""
    if factor == 1.0:
        return tensor
    return _narrow(_scaled(_widen(tensor), factor, 1, tensor.dtype), tensor.dtype)


def travelling(tensor: Tensor, wire: torch.dtype) -> Tensor:
    """The tensor in the type in which it travels, rounded once."""
    if tensor.dtype == torch.float64 and wire in HALVES:
        tensor = _rounded_to_odd(tensor)  # a plain step through float32, which torch makes, rounds twice
    return tensor.to(wire)


def arrived(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What has travelled, in its own type again."""
    return (
        tensor if tensor.dtype == dtype else one_nan(tensor.to(dtype))
    )  # torch widens a NaN to various ones


def reduced(op: int, rows: Sequence[Tensor], postscale: float, ranks: int) -> Tensor:
    """The tensors of all ranks reduced and scaled; an average divides by ``ranks``."""
    dtype = rows[0].dtype
    if op == Adasum:
        total = _adasum([_widen(row) for row in rows])
    else:
        total = _widen(rows[0])
        for row in rows[1:]:
            total = _combined(op, total, _widen(row))
    if dtype == torch.uint16:
        total = total.bitwise_and(0xFFFF)  # as its own type would have wrapped around
    total = _narrow(_scaled(total, postscale, ranks if op == Average else 1, dtype), dtype)
    return one_nan(total) if len(rows) > 1 else total


def one_nan(tensor: Tensor) -> Tensor:
    """The tensor with every NaN made the usual one."""
    return tensor.masked_fill(tensor.isnan(), float("nan")) if tensor.is_floating_point() else tensor


def neutral(op: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """What changes no other rank's contribution."""
    value: float = 1 if op == Product else 0
    if op in (Min, Max):
        if dtype == torch.bool:
            value = op == Min
        elif dtype.is_floating_point:
            value = float("inf") if op == Min else float("-inf")
        else:
            value = torch.iinfo(dtype).max if op == Min else torch.iinfo(dtype).min
    if dtype == torch.uint16:  # of which torch can do little
        return torch.full(shape, value, dtype=torch.int32, device=device).to(torch.int16).view(dtype)
    return torch.full(shape, value, dtype=dtype, device=device)


def _widen(tensor: Tensor) -> Tensor:
    """In the type in which is computed."""
    if tensor.dtype in HALVES:
        return tensor.to(torch.float32)
    if tensor.dtype == torch.uint16:
        return tensor.view(torch.int16).to(torch.int32).bitwise_and(0xFFFF)
    return tensor


def _narrow(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint16:
        return tensor.to(torch.int16).view(dtype)
    return tensor.to(dtype)


def _combined(op: int, a: Tensor, b: Tensor) -> Tensor:
    """Of two ranks' tensors, the lower rank's on the left."""
    if op == Product:
        return a * b
    if op in (Min, Max):
        right = b < a if op == Min else b > a  # on a tie, as of two zeros, the left one stays
        return torch.where(right | b.isnan() if b.is_floating_point() else right, b, a)
    return a + b


def _scaled(tensor: Tensor, factor: float, divisor: int, dtype: torch.dtype) -> Tensor:
    """``tensor * factor / divisor``; integers toward zero, to the limits of ``dtype``."""
    if factor == 1.0 and divisor == 1:
        return tensor
    if tensor.is_floating_point():
        return tensor * (factor / divisor)
    if factor == 1.0:
        return torch.div(tensor, divisor, rounding_mode="trunc")
    numbers = torch.trunc(tensor.to(torch.float64) * factor / divisor)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    # float64 does not know the largest int64, but the number behind it.
    within = (numbers >= float(least)) & (numbers < float(most) + (1.0 if most < 2**53 else 0.0))
    inside = torch.where(within, numbers, 0.0).to(tensor.dtype)
    beyond = torch.where(numbers > 0, most, least).to(tensor.dtype)
    return torch.where(within, inside, beyond)


def _rounded_to_odd(tensor: Tensor) -> Tensor:
    """float64 as float32, what is inexact to the neighbour with an odd last bit: it may be rounded again."""
    near = tensor.to(torch.float32)
    back = near.to(torch.float64)
    inexact = near.isfinite() & (back != tensor)
    toward_zero = torch.where(back.abs() > tensor.abs(), torch.nextafter(near, torch.zeros_like(near)), near)
    odd = toward_zero.view(torch.int32).bitwise_or(1).view(torch.float32)
    return torch.where(inexact, odd, near)


def _adasum(vectors: list[Tensor]) -> Tensor:
    """Neighbours combine, then the results do, and so on."""
    while len(vectors) > 1:
        vectors = [_adasum_of_two(vectors[i], vectors[i + 1]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def _adasum_of_two(a: Tensor, b: Tensor) -> Tensor:
    wide_a, wide_b = a.to(torch.float64), b.to(torch.float64)
    aa, ab, bb = _dot(wide_a, wide_a), _dot(wide_a, wide_b), _dot(wide_b, wide_b)
    by_a = torch.where(aa != 0.0, 1.0 - ab / (2.0 * aa), 1.0)
    by_b = torch.where(bb != 0.0, 1.0 - ab / (2.0 * bb), 1.0)
    return (wide_a * by_a + wide_b * by_b).to(a.dtype)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """In eight lanes, as the engine's kernel, so that the bits are the same (on CPUs)."""
    products = a.new_zeros(max(1, -(-a.numel() // 8)) * 8)
    products[: a.numel()] = (a * b).reshape(-1)
    lanes = products.view(-1, 8).cumsum(0)[-1]
    pairs = lanes[0::2] + lanes[1::2]
    return (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])
