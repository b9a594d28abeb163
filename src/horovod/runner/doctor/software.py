"""Python, frameworks, MPI, ssh: what is installed, without importing any of it."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

from horovod.runner.doctor.finding import Finding, Level
from horovod.runner.frameworks import FRAMEWORKS, Found, Framework, installed_version, look_for

__all__ = ["checks"]

MIN_PYTHON = (3, 11)
_MPI_MARKS = (
    ("Open MPI", "Open MPI"),
    ("OpenRTE", "Open MPI"),
    ("prterun", "Open MPI"),
    ("HYDRA", "MPICH"),
    ("Intel(R) MPI", "Intel MPI"),
)


def checks(environ: Mapping[str, str]) -> list[Callable[[], Finding]]:
    """All checks of this module."""
    return [
        python,
        *(functools.partial(framework, one) for one in FRAMEWORKS),
        lambda: mpirun(functools.partial(shutil.which, "mpirun", path=environ.get("PATH"))),
        mpi4py,
        lambda: ssh(functools.partial(shutil.which, "ssh", path=environ.get("PATH"))),
    ]


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Which one runs ``horovodrun``; ranks run what the command says."""
    found = f"{'.'.join(map(str, version))} ({sys.executable})"
    if version < MIN_PYTHON:
        return Finding("Python", Level.PROBLEM, found, "Khorovod needs Python 3.11 or newer")
    return Finding("Python", Level.OK, found)


def framework(which: Framework, look: Callable[[Framework], Found] = look_for) -> Finding:
    """Whether it is there, and can be used."""
    found = look(which)
    if found.version is None:
        if which is FRAMEWORKS[0]:
            return Finding(
                which.name, Level.WARNING, "not installed", "pip install numpy: horovod.numpy needs it"
            )
        return Finding(which.name, Level.OK, "not installed")
    text = f"{found.distribution} {found.version}"
    if not found.has_frontend:
        advice = f"{which.frontend} does not exist in this version yet; horovod.numpy takes NumPy arrays"
        return Finding(which.name, Level.WARNING, f"{text}, no frontend", advice)
    return Finding(which.name, Level.OK, f"{text}, use {which.frontend}")


def ask_version(path: str) -> str:
    """What ``mpirun --version`` says."""
    done = subprocess.run(
        [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
    )
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def mpirun(which: Callable[[], str | None], version: Callable[[str], str] = ask_version) -> Finding:
    """Not needed: horovodrun starts ranks by itself."""
    path = which()
    if path is None:
        return Finding("mpirun", Level.OK, "not found (not needed)")
    try:
        text = version(path)
    except (OSError, subprocess.SubprocessError) as error:
        advice = "horovodrun does not need it; remove it from the PATH or mend it before you use it"
        return Finding("mpirun", Level.WARNING, f"{path} does not run: {error}", advice)
    name = next((name for mark, name in _MPI_MARKS if mark in text), "of an unknown kind")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return Finding("mpirun", Level.OK, f"{path}, {name} ({first[:60]})")


def mpi4py(version_of: Callable[[str], str | None] = installed_version) -> Finding:
    """Not needed either; ``init(comm=...)`` takes its communicators."""
    version = version_of("mpi4py")
    return Finding("mpi4py", Level.OK, version if version is not None else "not installed (not needed)")


def ssh(which: Callable[[], str | None]) -> Finding:
    """For several machines, one day."""
    path = which()
    return Finding("ssh", Level.OK, path or "not found (not needed: this version works on one machine)")
