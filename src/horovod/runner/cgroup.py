"""What the kernel says of this process's cgroup, version 2 or 1: limits and counters. No policy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Cgroup"]

_UNLIMITED = 1 << 62  # version 1 writes "no limit" as a number about as large as fits


class Cgroup:
    """The cgroup of this process. ``proc`` and ``root`` are where the kernel's files are."""

    def __init__(self, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._root = root

    def oom_kills(self) -> int:
        """A number that rises when a process is ended for lack of memory: in the cgroup or elsewhere.

        A rank may be in another cgroup than its launcher, so the machine's counter is looked at too.
        """
        names = ("memory.events", "memory.oom_control")
        texts = [*self._texts("memory", names), _read(self._proc / "vmstat")]
        counters = [re.search(r"^oom_kill (\d+)$", text, re.MULTILINE) for text in texts]
        return sum(int(counter[1]) for counter in counters if counter is not None)

    def memory_limit(self) -> int | None:
        """The smallest limit of the cgroup and those around it, in bytes."""
        texts = self._texts("memory", ("memory.max", "memory.limit_in_bytes"))
        limits = [int(text) for text in texts if text.strip().isdigit()]
        return min((limit for limit in limits if limit < _UNLIMITED), default=None)

    def cpu_quota(self) -> float | None:
        """How many CPUs' time the cgroup may use, by its own limit and those around it."""
        quotas = [
            tuple(map(int, text.split())) for text in self._texts("cpu", ("cpu.max",)) if "max" not in text
        ]
        for directory in self._directories("cpu"):
            pair = _read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")
            if all(text.strip().isdigit() for text in pair):  # the quota is -1 for "no limit"
                quotas.append((int(pair[0]), int(pair[1])))
        return min((quota / period for quota, period in quotas), default=None)

    def _texts(self, controller: str, names: tuple[str, ...]) -> Iterator[str]:
        for directory in self._directories(controller):
            yield from filter(None, (_read(directory / name) for name in names))

    def _directories(self, controller: str) -> list[Path]:
        """Innermost first. A container may see its own cgroup as the root, whatever the path says."""
        found: list[Path] = []
        for line in _read(self._proc / "self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = self._root / controllers
            inner = top / path.strip("/")
            found += [inner, *(parent for parent in inner.parents if parent.is_relative_to(top))]
        return found


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
