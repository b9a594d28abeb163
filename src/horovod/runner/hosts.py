"""The hosts of a job as the user writes them (``-H host1:2,host2:4``), and which of them is this machine.

Knows nothing about ranks or processes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Host", "is_local", "parse_hosts", "read_hostfile"]

_PATTERN = re.compile(r"([\w.-]+):(\d+)", re.ASCII)


@dataclass(frozen=True)
class Host:
    """A host and how many ranks it may run."""

    name: str
    slots: int


def parse_hosts(text: str) -> list[Host]:
    """Read ``host1:2,host2:4``; a host that is named twice gets the sum of its slots."""
    slots: dict[str, int] = {}
    for part in text.split(","):
        match = _PATTERN.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                f"{part.strip()!r} in the list of hosts is not valid: it must look like host:slots"
            )
        name, count = match[1], int(match[2])
        if count == 0:
            raise ValueError(f"host {name} has 0 slots: it must have at least 1")
        slots[name] = slots.get(name, 0) + count
    return [Host(name, count) for name, count in slots.items()]


def read_hostfile(text: str, source: str) -> list[Host]:
    """Read lines ``host slots=2``; without slots a host has one. ``source`` names the file in errors."""
    parts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        slots = [word.removeprefix("slots=") for word in words[1:] if word.startswith("slots=")]
        if not words:
            continue
        if len(words) != 1 + len(slots) or not all(count.isdigit() for count in slots):
            raise ValueError(f"{source}, line {number}: {line.strip()!r} must look like: host slots=2")
        parts.append(f"{words[0]}:{slots[0] if slots else 1}")
    if not parts:
        raise ValueError(f"{source} names no host")
    return parse_hosts(",".join(parts))


def is_local(name: str) -> bool:
    """Whether ``name`` is this machine."""
    node = os.uname().nodename
    if name in ("localhost", node, node.partition(".")[0]) or re.fullmatch(r"127(\.\d{1,3}){3}", name):
        return True
    return _resolves_to_this_machine(name)


def _resolves_to_this_machine(name: str) -> bool:
    import socket  # only for names that are not plainly this machine

    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in addresses)


def _is_own_address(family: int, address: Sequence[object]) -> bool:
    """A socket can be bound to an address of this machine only (port 0: nothing is kept from anybody)."""
    import socket

    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address[0], 0))
        except OSError:
            return False
    return True
