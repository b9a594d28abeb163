"""Which rank runs where: a pure function from hosts and a number of ranks to slots (:func:`place_here` also
asks whether the hosts are this machine).

Knows nothing about processes or the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod.runner.hosts import Host, is_local

__all__ = ["Slot", "place", "place_here"]


@dataclass(frozen=True)
class Slot:
    """The place of one rank. ``cross_*`` count the hosts that have this ``local_rank``."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def place_here(hosts: Sequence[Host], num_proc: int) -> list[Slot]:
    """:func:`place`, and all hosts that are used are this machine; else ``ValueError``."""
    slots = place(hosts, num_proc)
    for name in dict.fromkeys(slot.host for slot in slots):
        if not is_local(name):
            raise ValueError(f"host {name} is another machine: that is not available yet in this version")
    return slots


def place(hosts: Sequence[Host], num_proc: int) -> list[Slot]:
    """Fill the hosts with ``num_proc`` ranks, in the given order; slots that are left over stay empty."""
    if num_proc < 1:
        raise ValueError(f"the number of processes is {num_proc}: it must be at least 1")
    available = sum(host.slots for host in hosts)
    if available < num_proc:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ValueError(
            f"{num_proc} processes do not fit on {available} slots ({listed}): add hosts or slots"
        )
    used: list[Host] = []
    left = num_proc
    for host in hosts:
        used.append(Host(host.name, min(host.slots, left)))
        left -= used[-1].slots
    return [
        Slot(
            host=host.name,
            rank=sum(h.slots for h in used[:index]) + local_rank,
            size=num_proc,
            local_rank=local_rank,
            local_size=host.slots,
            cross_rank=sum(h.slots > local_rank for h in used[:index]),
            cross_size=sum(h.slots > local_rank for h in used),
        )
        for index, host in enumerate(used)
        for local_rank in range(host.slots)
    ]
