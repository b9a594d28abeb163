"""Compression: as what type gradients travel. The engine casts while it copies: there is no extra pass.

``Compression.fp16`` and ``Compression.bf16`` halve the bytes of float32 tensors (and quarter those of
float64); other types are left alone. A class of your own with ``compress`` and ``decompress`` works too, as
an extra pass before and after the operation.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Compression", "Compressor", "engine_code", "wire_code"]


class Compressor:
    """What a compression has to offer. Subclasses may say by ``wire`` that the engine knows them."""

    wire: int | None = None
    """The engine's number for it; ``None``: :meth:`compress` and :meth:`decompress` are called."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor that travels, and what :meth:`decompress` needs."""
        raise NotImplementedError("A Compressor must define compress(tensor) -> (tensor, context).")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The result in its original form."""
        raise NotImplementedError("A Compressor must define decompress(tensor, context).")


class NoneCompressor(Compressor):
    """Tensors travel as they are."""

    wire = 0


class FP16Compressor(Compressor):
    """Floats travel as float16: five bits of exponent, ten of fraction; beyond 65504 they overflow."""

    wire = 1


class BF16Compressor(Compressor):
    """Floats travel as bfloat16: the range of float32 with seven bits of fraction."""

    wire = 2


class Compression:
    """The compressions there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def wire_code(compression: type[Compressor]) -> int | None:
    """The engine's number of a compression; ``None`` if it must be done outside.

    A class that replaces methods of one that the engine knows is not known for that.
    """
    kind: Any = compression if isinstance(compression, type) else type(compression)
    for base in kind.__mro__:
        if "wire" in vars(base):
            return getattr(base, "wire", None)
        if "compress" in vars(base) or "decompress" in vars(base):
            return None
    return None


def engine_code(compression: type[Compressor]) -> int:
    """The engine's number of a compression, where nothing else will do."""
    code = wire_code(compression)
    if code is None:
        raise ValueError(
            f"This operation can use Compression.none, fp16 and bf16, not {compression!r}; compress and "
            "decompress the tensors yourself, or use the blocking function."
        )
    return code
