"""What a job may leave behind: processes, mapped regions, sockets, files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path


def processes(mark: str) -> list[int]:
    """The living processes with this ``NAME=value`` in their first environment; zombies do not live."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_marked(name, mark.encode())]


def _is_marked(pid: str, mark: bytes) -> bool:
    try:
        if mark not in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
            return False
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def holders(regions: Collection[str]) -> list[int]:
    """The processes that have one of these regions (``device:inode``) mapped, or open."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _holds(pid, regions)]


def _holds(pid: str, regions: Collection[str]) -> bool:
    try:
        maps = Path("/proc", pid, "maps").read_text()
        if "/memfd:khorovod" in maps and any(
            ":".join(line.split()[3:5]) in regions for line in maps.splitlines()
        ):
            return True
        inodes = {int(region.rpartition(":")[2]) for region in regions}
        links = [
            entry for entry in Path("/proc", pid, "fd").iterdir() if "/memfd:khorovod" in os.readlink(entry)
        ]
        return any(entry.stat().st_ino in inodes for entry in links)
    except OSError:
        return False


def unix_sockets(job: str) -> list[str]:
    """Names of unix sockets with the job's name in them."""
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    return [line.rpartition(" ")[2] for line in lines if job in line]


def tcp_sockets(ports: Collection[int]) -> list[int]:
    """Those of these local ports that are still listened on, or whose connection nobody has closed."""
    open_states = ("01", "0A")  # established, listening
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] in open_states}
    return sorted(found.intersection(ports))


def shared_memory_files(job: str) -> list[str]:
    """Files in /dev/shm that bear the job's name."""
    return [name for name in os.listdir("/dev/shm") if job in name]
