"""What /proc tells of a job: its processes, and what they may leave behind: regions, sockets, files."""

from __future__ import annotations

import contextlib
import os
import re
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


def starved_seconds(pids: Collection[int]) -> float:
    """The longest that one of these processes, ready to run, has waited for a core."""
    waits = [0.0]
    for pid in pids:
        with contextlib.suppress(OSError):
            waits.append(int(Path("/proc", str(pid), "schedstat").read_text().split()[1]) / 1e9)
    return max(waits)


def regions(pid: int | str = "self") -> set[str]:
    """The memory regions of Khorovod that a process has mapped or open, as inodes; none if it is gone."""
    try:
        maps = Path("/proc", str(pid), "maps").read_text()
    except OSError:
        return set()
    opened = {inode for link, inode in _descriptors(pid) if "memfd:khorovod" in link}
    return opened.union(re.findall(r" (\d+) +/memfd:khorovod", maps))


def _descriptors(pid: int | str) -> list[tuple[str, str]]:
    """What a process's descriptors refer to: name and inode."""
    found = []
    with contextlib.suppress(OSError):
        for link in Path("/proc", str(pid), "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile; in this process, that of the list itself
                found.append((os.readlink(link), str(link.stat().st_ino)))
    return found


def holders(wanted: Collection[str]) -> list[int]:
    """The processes that have one of these regions."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and regions(pid).intersection(wanted)]


def unix_sockets(job: str) -> list[str]:
    """Names of unix sockets with the job's name in them."""
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    return [line.rpartition(" ")[2] for line in lines if job in line]


def own_sockets() -> list[str]:
    """The inodes of this process's sockets."""
    return sorted(inode for link, inode in _descriptors("self") if link.startswith("socket:"))


def sockets(wanted: Collection[str]) -> list[str]:
    """Those of these sockets that some process still holds."""
    tcp = [line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    unix = [line.split()[6] for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]]
    return sorted({*tcp, *unix}.intersection(wanted))


def shared_memory_files(job: str) -> list[str]:
    """Files in /dev/shm that bear the job's name."""
    return [name for name in os.listdir("/dev/shm") if job in name]
