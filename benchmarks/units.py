"""Numbers as people read them, for tables, goals and the picture."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20


def duration(microseconds: float) -> str:
    """Three digits and a unit."""
    for limit, scale, unit in ((1e3, 1, "us"), (1e6, 1e3, "ms")):
        if microseconds < limit:
            return f"{number(microseconds / scale)} {unit}"
    return f"{number(microseconds / 1e6)} s"


def length(count: int) -> str:
    """Bytes as people say them."""
    for scale, unit in ((MIB, "MiB"), (KIB, "KiB")):
        if count >= scale:
            return f"{count // scale} {unit}"
    return f"{count} B"


def number(value: float) -> str:
    """Three significant digits, never in powers of ten."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{3 if 0 < abs(value) < 0.1 else digits}f}"
