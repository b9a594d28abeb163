"""How much of everything there is: limits of the process, CPUs, memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection
from pathlib import Path

from horovod.runner.cgroup import Cgroup
from horovod.runner.doctor.finding import Finding, Level

__all__ = ["CHECKS"]

GetLimit = Callable[[int], tuple[int, int]]
MIB = 1 << 20
MIN_FILES, FEW_FILES = 64, 1024
FEW_PROCESSES = 256
LITTLE_MEMORY = 512 * MIB


def _amount(value: int, unit: int = 1, word: str = "") -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value // unit}{word}"


def open_files(limit: GetLimit = resource.getrlimit) -> Finding:
    """Each rank costs the launcher 4 descriptors; a rank needs up to 4 for each other one."""
    soft, hard = limit(resource.RLIMIT_NOFILE)
    found = f"{_amount(soft)} (ulimit -n; may be raised to {_amount(hard)})"
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
        return Finding("open files", Level.OK, found)
    level = Level.PROBLEM if soft < MIN_FILES else Level.WARNING
    return Finding("open files", level, found, "too few for large jobs: ulimit -n 4096")


def processes(limit: GetLimit = resource.getrlimit) -> Finding:
    """Two processes per rank, and threads count too."""
    soft, _ = limit(resource.RLIMIT_NPROC)
    found = f"{_amount(soft)} (ulimit -u)"
    if soft == resource.RLIM_INFINITY or soft >= FEW_PROCESSES:
        return Finding("processes", Level.OK, found)
    advice = "a rank is two processes and several threads, and all of the user's count: ulimit -u 4096"
    return Finding("processes", Level.WARNING, found, advice)


def file_size(limit: GetLimit = resource.getrlimit) -> Finding:
    """Cuts shared memory, too: a memfd is a file."""
    soft, _ = limit(resource.RLIMIT_FSIZE)
    found = f"{_amount(soft, MIB, ' MiB')} (ulimit -f)"
    if soft == resource.RLIM_INFINITY:
        return Finding("file size", Level.OK, found)
    advice = "cuts logs, checkpoints and shared memory short: ulimit -f unlimited"
    return Finding("file size", Level.WARNING, found, advice)


def locked_memory(limit: GetLimit = resource.getrlimit) -> Finding:
    """Told only: Khorovod locks none, drivers of GPUs and fast networks do."""
    soft, _ = limit(resource.RLIMIT_MEMLOCK)
    return Finding(
        "locked memory", Level.OK, f"{_amount(soft, 1024, ' KiB')} (ulimit -l; not used by Khorovod)"
    )


def address_space(limit: GetLimit = resource.getrlimit) -> Finding:
    """Frameworks reserve far more than they use."""
    soft, _ = limit(resource.RLIMIT_AS)
    found = f"{_amount(soft, MIB, ' MiB')} (ulimit -v)"
    if soft == resource.RLIM_INFINITY:
        return Finding("address space", Level.OK, found)
    advice = "frameworks reserve far more than they use, and fail in odd ways: ulimit -v unlimited"
    return Finding("address space", Level.WARNING, found, advice)


def _affinity() -> Collection[int]:
    return os.sched_getaffinity(0)


def cpus(
    affinity: Callable[[], Collection[int]] = _affinity,
    count: Callable[[], int | None] = os.cpu_count,
    quota: Callable[[], float | None] = lambda: Cgroup().cpu_quota(),
) -> Finding:
    """As many ranks as CPUs is what runs well."""
    usable, limit = len(affinity()), quota()
    found = f"{usable} of {count() or usable} may be used"
    if limit is not None:
        found += f", with a quota of {limit:g} (cgroup)"
        if limit < usable:
            most = max(1, int(limit))
            advice = (
                f"the kernel pauses the ranks when the quota is used up: start {most} at most, or raise it"
            )
            return Finding("CPUs", Level.WARNING, found, advice)
    if usable < 2:
        advice = "ranks take turns on one CPU: fine for a test, not for speed (taskset, cgroup or machine)"
        return Finding("CPUs", Level.WARNING, found, advice)
    return Finding("CPUs", Level.OK, found)


def read_meminfo() -> str:
    """The kernel's word on memory."""
    return Path("/proc/meminfo").read_text()


def memory(
    meminfo: Callable[[], str] = read_meminfo,
    limit: Callable[[], int | None] = lambda: Cgroup().memory_limit(),
) -> Finding:
    """What is there, and what this cgroup may have of it."""
    amounts = dict(line.split(":", 1) for line in meminfo().splitlines() if ":" in line)
    total, available = (int(amounts[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    found = f"{total // MIB} MiB, {available // MIB} MiB available"
    if (most := limit()) is not None and most < total:
        found += f", {most // MIB} MiB for this cgroup"
        available = min(available, most)
    if available < LITTLE_MEMORY:
        advice = "a rank may be killed for lack of memory (exit code 137): free some, or raise the limit"
        return Finding("memory", Level.WARNING, found, advice)
    return Finding("memory", Level.OK, found)


def read_ptrace_scope() -> str:
    """Yama's setting."""
    return Path("/proc/sys/kernel/yama/ptrace_scope").read_text()


def ptrace_scope(read: Callable[[], str] = read_ptrace_scope) -> Finding:
    """Told only: Khorovod attaches to nothing, py-spy and gdb do."""
    try:
        found = f"yama {read().strip()}"
    except OSError:
        found = "no yama"
    return Finding("ptrace scope", Level.OK, f"{found} (for gdb and py-spy; not used by Khorovod)")


CHECKS = (open_files, processes, file_size, locked_memory, address_space, cpus, memory, ptrace_scope)
