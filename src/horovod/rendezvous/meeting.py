"""The meeting at ``init()``: the ranks of one machine find each other on an abstract unix socket.

Rank 0 listens under a name made of the job and the number of this ``init()``; the others connect. Rank 0
sends everybody the roster, with a region of shared memory and the descriptors by which ranks wake and watch
each other; where a rank cannot see the region, all use sockets instead. Every wait ends at the deadline, and
the error says who was missing. Knows nothing of the engine: the outcome is a bag of facts and descriptors.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress

from horovod.exceptions import InitError
from horovod.rendezvous.guest import Guest
from horovod.rendezvous.host import Host
from horovod.rendezvous.invitation import Deadline, Invitation, World, address

__all__ = ["Invitation", "World", "meet"]


def meet(invitation: Invitation) -> World:
    """Waits for all ranks of the job; ``InitError`` says whom it waited for in vain."""
    deadline = Deadline(invitation.timeout)
    claim = _claim(invitation)
    wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        with ExitStack() as stack:
            role = Host if invitation.rank == 0 else Guest
            world = role(invitation, deadline, wake, stack).run()
            world.claim = claim
            return world
    except BaseException:
        claim.close()
        with suppress(OSError):
            os.close(wake)
        raise


def _claim(invitation: Invitation) -> socket.socket:
    """Takes this rank's name, which the kernel gives away once: a child with the same environment stops."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"{address(invitation)}-rank-{invitation.rank}")
    except OSError as error:
        claim.close()
        raise InitError(
            f"Another process is rank {invitation.rank} of this job already ({error.strerror}). Do not start "
            "two processes with the same rank, and do not call init() in a child process that inherits "
            "HOROVOD_RANK (or what else your launcher sets) from a rank."
        ) from None
    return claim
