"""The names of abstract sockets that both sides must know, and nothing else: cheap to import."""

from __future__ import annotations

__all__ = ["launcher_address"]


def launcher_address(job_id: str) -> str:
    """Where the launcher of a job answers its ranks."""
    return f"\0khorovod-{job_id}-launcher"
