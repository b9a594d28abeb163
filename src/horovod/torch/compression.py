"""Compression: as what type gradients travel between ranks.

The engine casts ``Compression.fp16`` and ``Compression.bf16`` while it copies, so ``compress`` of these is
called by nobody but scripts. A class of your own is called before and after every reduction.
"""

from __future__ import annotations

from typing import Any

import torch

from horovod._core import compression as core

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

Compressor = core.Compressor


class NoneCompressor(core.NoneCompressor):
    """Tensors travel as they are."""

    wire = core.NoneCompressor.wire

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004
        """The tensor itself."""
        return tensor


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.dtype]:
    return (tensor.to(dtype) if tensor.dtype.is_floating_point else tensor), tensor.dtype


class FP16Compressor(core.FP16Compressor):
    """Floats travel as float16: five bits of exponent, ten of fraction; beyond 65504 they overflow."""

    wire = core.FP16Compressor.wire

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor as float16, if it is of floats, and its type."""
        return _cast(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """The tensor in its original type."""
        return tensor.to(ctx)


class BF16Compressor(core.BF16Compressor):
    """Floats travel as bfloat16: the range of float32 with seven bits of fraction."""

    wire = core.BF16Compressor.wire

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor as bfloat16, if it is of floats, and its type."""
        return _cast(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """The tensor in its original type."""
        return tensor.to(ctx)


class Compression:
    """The compressions there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
