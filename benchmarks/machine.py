"""The machine and the versions: what a reading is worth nothing without."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.peers import MPI_NAMES
from benchmarks.peers.mpi import PREFIXES


def facts() -> dict[str, Any]:
    """Date, hardware, kernel, versions, commit."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "commit": _commit(),
        "versions": {name: _version(name) for name in ("khorovod", "numpy", "torch", "mpi4py")}
        | {name: _version(name, PREFIXES / name) for name in MPI_NAMES},
    }


def sentence(machine: dict[str, Any]) -> str:
    """The facts as one line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['date']}, commit {machine['commit']}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, Linux {machine['kernel']}, Python {machine['python']}, {versions}; "
        f"load average before the run {machine['load_before']:.2f}"
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    try:
        asked = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
        return subprocess.run(
            asked, cwd=ROOT, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _version(name: str, prefix: Path | None = None) -> str:
    if prefix is None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"
    folders = [str(folder) for folder in prefix.glob("lib/python*/site-packages")]
    found = importlib.metadata.distributions(name=name, path=folders)
    return next((distribution.version for distribution in found), "not installed")
