"""``horovodrun --check-build``: what this version can do, in the original's form."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.runner.frameworks import FRAMEWORKS, Found, look_for

__all__ = ["describe_build"]

_OWN = "Khorovod's own takes its place: gloo_built() is True, no library is needed"
_CONTROLLERS = (("MPI", False, "mpirun can start jobs all the same"), ("Gloo", True, _OWN))
_OPERATIONS = (
    ("NCCL", False, ""),
    ("DDL", False, ""),
    ("CCL", False, ""),
    ("MPI", False, ""),
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
        ("Available Tensor Operations", _OPERATIONS),
    )
    lines = [f"Khorovod v{version}:"]
    for title, rows in sections:
        lines += ["", f"{title}:"]
        lines += [
            f"    [{'X' if there else ' '}] {name}" + (f" ({note})" if note else "")
            for name, there, note in rows
        ]
    return "\n".join(lines) + "\n"


def _framework(found: Found) -> tuple[str, bool, str]:
    there = found.version is not None and found.has_frontend
    note = f"{found.distribution} {found.version}" if found.version is not None else "not installed"
    if found.route:
        note += f"; {found.route}"
    if not found.has_frontend:
        note += "; no frontend in this version yet"
    return found.framework.name, there, note
