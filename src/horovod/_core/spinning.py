"""How long a waiting thread may spin before it sleeps: a pure decision from the CPUs there are.

Spinning saves the tens of microseconds that it takes to wake a sleeping core, but only if nobody else wants
the core: never with more ranks than CPUs.
"""

from __future__ import annotations

import os
from pathlib import Path

AUTOMATIC = -1
_DEFAULT_US = 80  # measured: waking a sleeping core takes about 50


def spin_microseconds(setting: int, local_size: int, cpus: float | None = None) -> int:
    """The time to spin: the setting, or chosen by the CPUs that this process may use."""
    if setting != AUTOMATIC:
        return setting
    available = usable_cpus() if cpus is None else cpus
    return _DEFAULT_US if available >= max(local_size, 2) else 0


def usable_cpus() -> float:
    """CPUs by affinity, bounded by the cgroup's quota."""
    by_affinity = float(len(os.sched_getaffinity(0)))
    quota = cgroup_cpus()
    return by_affinity if quota is None else min(by_affinity, quota)


def cgroup_cpus(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The CPU quota of a version-2 or version-1 cgroup mounted at ``root``; ``None`` if there is none."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        micros = int((root / "cpu/cpu.cfs_quota_us").read_text())
        return None if micros <= 0 else micros / int((root / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
