"""Rewrites the parts of benchmarks/README.md between two marker comments."""

from __future__ import annotations

import shutil
from pathlib import Path

README = Path(__file__).resolve().parent / "README.md"


def replace_results(text: str, tables: str, section: str = "results") -> str:
    """Return the README's text with the tables between the section's markers."""
    opening = f"<!-- {section}: begin (written by --write-readme) -->"
    closing = f"<!-- {section}: end -->"
    before, begin, rest = text.partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end:
        raise ValueError(f"{README} must contain the lines {opening!r} and {closing!r}")
    return f"{before}{opening}\n\n{tables.strip()}\n\n{closing}{after}"


def write(tables: str, picture: Path, section: str = "results", title: str = "bandwidth and latency") -> None:
    """Rewrite the file; the picture, if there is one, is kept beside it (results/ is not committed)."""
    if picture.is_file():
        shutil.copyfile(picture, README.parent / picture.name)
        tables = f"{tables.strip()}\n\n![{title}]({picture.name})"
    README.write_text(replace_results(README.read_text(), tables, section))
