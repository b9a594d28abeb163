"""Rewrites the part of benchmarks/README.md between two marker comments."""

from __future__ import annotations

import shutil
from pathlib import Path

README = Path(__file__).resolve().parent / "README.md"
BEGIN = "<!-- results: begin (written by --write-readme) -->"
END = "<!-- results: end -->"


def replace_results(text: str, tables: str) -> str:
    """Return the README's text with the tables between the markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README} must contain the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{tables.strip()}\n\n{END}{after}"


def write(tables: str, picture: Path) -> None:
    """Rewrite the file; the picture, if there is one, is kept beside it (results/ is not committed)."""
    if picture.is_file():
        shutil.copyfile(picture, README.parent / picture.name)
        tables = f"{tables.strip()}\n\n![bandwidth and latency]({picture.name})"
    README.write_text(replace_results(README.read_text(), tables))
