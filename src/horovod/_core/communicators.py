"""Worlds of a part of the ranks: what ``init(comm=...)`` makes of a list of ranks or an MPI communicator.

Nothing here imports MPI: a communicator is an object of mpi4py's that the program already has. It is asked
who its members are, and carries one message that names the world; then it is not used any more.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from horovod._identity import Identity

__all__ = ["place_in"]


def place_in(comm: Any, who: Identity) -> Identity:
    """This process's place among the members of ``comm``; all ranks if that is ``None`` or empty."""
    if comm is None:
        return who
    if hasattr(comm, "Get_size"):
        return _among(comm, who)
    ranks = sorted(int(rank) for rank in comm)
    if not ranks or ranks == list(range(who.size)):
        return who
    if len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= who.size:
        raise ValueError(f"init(comm={ranks}) must name different ranks from 0 to {who.size - 1}.")
    if who.rank not in ranks:
        raise ValueError(
            f"init(comm={ranks}) was called by rank {who.rank}, which is not in it: only those ranks may."
        )
    if who.local_size != who.size:
        raise NotImplementedError("init(comm=[...]) of some ranks works on one machine only.")
    return _part(who, ranks)


def _part(who: Identity, ranks: Sequence[int]) -> Identity:
    """As the launcher numbers them: all ranks of one machine."""
    digest = hashlib.blake2b(repr(list(ranks)).encode(), digest_size=8).hexdigest()
    place, count = ranks.index(who.rank), len(ranks)
    return replace(
        who,
        rank=place,
        size=count,
        local_rank=place,
        local_size=count,
        cross_rank=0,
        cross_size=1,
        job_id=f"{who.job_id}-{digest}",
    )


def _among(comm: Any, who: Identity) -> Identity:
    rank, size = int(comm.Get_rank()), int(comm.Get_size())
    if size == 1:
        job, hosts = os.urandom(16).hex(), [who.hostname]
    else:
        members = comm.allgather((os.urandom(16).hex(), who.hostname))
        job, hosts = members[0][0], [host for _, host in members]
    here = [other for other, host in enumerate(hosts) if host == who.hostname]
    local_rank = here.index(rank)
    # Hosts with so many ranks that one has this local rank, in the order of their first ranks.
    alike = [host for host in dict.fromkeys(hosts) if hosts.count(host) > local_rank]
    return replace(
        who,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=len(here),
        cross_rank=alike.index(who.hostname),
        cross_size=len(alike),
        job_id=job,
    )
