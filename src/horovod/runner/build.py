"""``horovodrun --check-build``: what this version can do, in the original's form."""

from __future__ import annotations

from collections.abc import Sequence

from horovod._version import __version__
from horovod.runner.frameworks import FRAMEWORKS, Found, installed_version, look_for

__all__ = ["check_build", "describe_build"]

_OWN = "Khorovod's own takes its place: gloo_built() is True, no library is needed"
_CONTROLLERS = (("MPI", False, "mpirun can start jobs all the same"), ("Gloo", True, _OWN))
_OPERATIONS = (
    ("NCCL", False, ""),
    ("DDL", False, ""),
    ("CCL", False, ""),
    ("Gloo", True, _OWN),
    ("Shared memory", True, ""),
    ("TCP", True, "on one machine"),
)


def describe_build(version: str, frameworks: Sequence[Found] | None = None) -> str:
    """The table to print."""
    found = [look_for(framework) for framework in FRAMEWORKS] if frameworks is None else frameworks
    sections = (
        ("Available Frameworks", [_framework(one) for one in found]),
        ("Available Controllers", _CONTROLLERS),
        ("Available Tensor Operations", [*_OPERATIONS[:3], _mpi(), *_OPERATIONS[3:]]),
    )
    lines = [f"Khorovod v{version}:"]
    for title, rows in sections:
        lines += ["", f"{title}:"]
        lines += [
            f"    [{'X' if there else ' '}] {name}" + (f" ({note})" if note else "")
            for name, there, note in rows
        ]
    return "\n".join(lines) + "\n"


def check_build(verbose: bool = False) -> None:
    """Prints the table; ``verbose`` is the original's, which has more to say of itself."""
    del verbose
    print(describe_build(__version__), end="")


def _mpi() -> tuple[str, bool, str]:
    version = installed_version("mpi4py")
    if version is None:
        return "MPI", False, "mpi4py is not installed: pip install 'khorovod[mpi]'"
    return "MPI", True, f"mpi4py {version}, with HOROVOD_CPU_OPERATIONS=mpi"


def _framework(found: Found) -> tuple[str, bool, str]:
    there = found.version is not None and found.has_frontend
    note = f"{found.distribution} {found.version}" if found.version is not None else "not installed"
    if found.route:
        note += f"; {found.route}"
    if not found.has_frontend:
        note += "; no frontend in this version yet"
    return found.framework.name, there, note
