"""The examples of the documentation run: all blocks of a page as one script, on two ranks."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["operations.md", "pytorch.md"]
TALKATIVE = ["tensorflow-operations.md", "tensorflow.md", "keras.md"]
"""What is imported there says something in any case, and takes its time."""
RANKS = 2

# Blocks are compiled as lines of the page itself, so that a traceback shows them.
SCRIPT = """
import sys
from pathlib import Path

page = Path(sys.argv[1])
lines = page.read_text().splitlines()
names = {"__name__": "__main__"}
for span in sys.argv[2:]:
    first, last = map(int, span.split("-"))
    block = "\\n" * (first - 1) + "\\n".join(lines[first - 1 : last])
    exec(compile(block, str(page), "exec"), names)
    print(f"ran {span}", flush=True)
"""


class Block(NamedTuple):
    """Python code on a page."""

    page: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.page}:{self.first}-{self.last}"


def blocks_of(page: str) -> list[Block]:
    """The page's blocks of Python, with the numbers of their first and last lines."""
    text = (ROOT / "docs" / page).read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    spans = [(text.count("\n", 0, block.start(1)) + 1, block[1].count("\n")) for block in found]
    return [Block(page, first, first + count - 1) for first, count in spans]


@cache
def run(page: str) -> tuple[str, str]:
    """What the ranks print, and what they complain of."""
    spans = [f"{block.first}-{block.last}" for block in blocks_of(page)]
    horovodrun = [str(Path(sys.executable).parent / "horovodrun"), "-np", str(RANKS)]
    strict = ["-W", "error"] if page in PAGES else []
    script = [sys.executable, *strict, "-c", SCRIPT, f"docs/{page}", *spans]
    done = subprocess.run(
        [*horovodrun, *script],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},  # TensorFlow tells what the CPU can do
        capture_output=True,
        text=True,
        timeout=60 if page in PAGES else 240,
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.timeout(260)
@pytest.mark.parametrize("block", [block for page in PAGES + TALKATIVE for block in blocks_of(page)], ids=str)
def test_block(block: Block) -> None:
    output, errors = run(block.page)
    for rank in range(RANKS):
        assert f"[{rank}]<stdout>:ran {block.first}-{block.last}\n" in output, errors


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_said_on_the_way(page: str) -> None:
    assert blocks_of(page)
    assert run(page)[1] == ""


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_page_of_settings_is_up_to_date() -> None:
    """Otherwise: ``python tools/settings_page.py``."""
    rendered = runpy.run_path(str(ROOT / "tools" / "settings_page.py"))["render"]()
    assert (ROOT / "docs" / "settings.md").read_text() == rendered


def test_a_function_on_many_ranks() -> None:
    """The program of launchers/python.md starts its ranks itself."""
    (block,) = blocks_of("launchers/python.md")
    lines = (ROOT / "docs" / block.page).read_text().splitlines()[block.first - 1 : block.last]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], timeout=100, check=True)
