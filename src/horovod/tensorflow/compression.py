"""Compression: as what type gradients travel between ranks.

The engine casts ``Compression.fp16`` and ``Compression.bf16`` while it copies, so ``compress`` of these is
called by nobody but scripts. A class of your own is called before and after every reduction.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod._core import compression as core

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

Compressor = core.Compressor


class NoneCompressor(core.NoneCompressor):
    """Tensors travel as they are."""

    wire = core.NoneCompressor.wire

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004
        """The tensor itself."""
        return tensor


def _cast(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    return (tf.cast(tensor, dtype) if tensor.dtype.is_floating else tensor), tensor.dtype


class FP16Compressor(core.FP16Compressor):
    """Floats travel as float16: five bits of exponent, ten of fraction; beyond 65504 they overflow."""

    wire = core.FP16Compressor.wire

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor as float16, if it is of floats, and its type."""
        return _cast(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its original type."""
        return tf.cast(tensor, ctx)


class BF16Compressor(core.BF16Compressor):
    """Floats travel as bfloat16: the range of float32 with seven bits of fraction."""

    wire = core.BF16Compressor.wire

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor as bfloat16, if it is of floats, and its type."""
        return _cast(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its original type."""
        return tf.cast(tensor, ctx)


class Compression:
    """The compressions there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
