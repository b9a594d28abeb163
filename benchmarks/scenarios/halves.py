"""float16 and bfloat16 sums in place, and float32 that travels as float16, at 2 and 4 ranks.

float32 of as many bytes is measured in the same rounds: a byte of a half should cost no more.
"""

from __future__ import annotations

from itertools import product

from benchmarks.cases import Calls
from benchmarks.peers import Format
from benchmarks.peers.base import importable
from benchmarks.results import Row
from benchmarks.session import Session, say
from benchmarks.units import MIB

NAME = "halves"
SIZES = (2, 4)
BYTES = (1 * MIB, 16 * MIB, 64 * MIB)
QUICK_BYTES = (1 * MIB, 16 * MIB)
FORMATS: tuple[Format, ...] = ("float32", "float16", "bfloat16", "fp16 wire")


def run(session: Session) -> list[Row]:
    """Everything at 2 ranks, then at 4; a quick run has 1 and 16 MiB."""
    rows: list[Row] = []
    for size, length in product(SIZES, QUICK_BYTES if session.options.quick else BYTES):
        cases = {format: Calls(length, format=format) for format in _formats()}
        rows += session.measure_together(
            NAME,
            "halves",
            [(case, {"format": format, "bytes": length}) for format, case in cases.items()],
            size,
        )
    session.end_worlds()
    return rows


def _formats() -> tuple[Format, ...]:
    if importable("ml_dtypes"):
        return FORMATS
    say("no bfloat16: ml_dtypes is not installed")
    return tuple(format for format in FORMATS if format != "bfloat16")
