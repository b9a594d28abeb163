"""What /proc says about this process: context switches of all its threads, and its memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

KIB = 1024


def _fields(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def context_switches() -> dict[str, int]:
    """Voluntary and involuntary switches, summed over the threads that are alive."""
    total = {"voluntary": 0, "involuntary": 0, "threads": 0}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = _fields(task / "status")
            total["voluntary"] += int(status["voluntary_ctxt_switches"])
            total["involuntary"] += int(status["nonvoluntary_ctxt_switches"])
            total["threads"] += 1
    return total


def memory() -> dict[str, int]:
    """Resident bytes by kind, the peak since `reset_peak`, and the proportional share (Pss)."""
    status = _fields(Path("/proc/self/status"))
    kinds = {"rss": "VmRSS", "peak": "VmHWM", "anonymous": "RssAnon", "shared": "RssShmem"}
    found = {name: _bytes(status[key]) for name, key in kinds.items()}
    found["pss"] = _bytes(_fields(Path("/proc/self/smaps_rollup"))["Pss"])
    return found


def reset_peak() -> None:
    """Make the next peak count from now on (Linux, CLEAR_REFS_MM_HIWATER_RSS)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _bytes(value: str) -> int:
    return int(value.split()[0]) * KIB
