"""The meeting at ``init()``: the ranks of one machine find each other on an abstract unix socket.

Rank 0 listens under a name made of the job and the number of this ``init()``; the others connect. Rank 0
sends everybody the roster, with a region of shared memory and the descriptors by which ranks wake and watch
each other; where a rank cannot see the region, all use sockets instead. Every wait ends at the deadline, and
the error says who was missing. Knows nothing of the engine: the outcome is a bag of facts and descriptors.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress

from horovod.rendezvous.guest import Guest
from horovod.rendezvous.host import Host
from horovod.rendezvous.invitation import Deadline, Invitation, World

__all__ = ["Invitation", "World", "meet"]


def meet(invitation: Invitation) -> World:
    """Waits for all ranks of the job; ``InitError`` says whom it waited for in vain."""
    deadline = Deadline(invitation.timeout)
    wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        with ExitStack() as stack:
            if invitation.rank == 0:
                return Host(invitation, deadline, wake, stack).run()
            return Guest(invitation, deadline, wake, stack).run()
    except BaseException:
        with suppress(OSError):
            os.close(wake)
        raise
