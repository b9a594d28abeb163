"""The meeting at ``init()``: the ranks of one machine find each other on an abstract unix socket.

Rank 0 listens under a name made of the job and the number of this ``init()``; the others connect. Rank 0
sends everybody the roster, with a region of shared memory and the descriptors by which ranks wake and watch
each other; where a rank cannot see the region, all use sockets instead. Every wait ends at the deadline, and
the error says who was missing. A rank that cannot go on says why, and all ranks raise it. Knows nothing of
the engine: that is what ``start`` makes of a bag of facts and descriptors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol, TypeVar

from horovod.exceptions import InitError
from horovod.rendezvous.claim import Claim
from horovod.rendezvous.guest import Guest
from horovod.rendezvous.host import Host
from horovod.rendezvous.invitation import Deadline, Invitation, World
from horovod.rendezvous.limits import explain

__all__ = ["Claim", "Invitation", "World", "meet"]


class Engine(Protocol):
    """What a rank starts when all have met."""

    def shutdown(self) -> None:
        """Ends it, if another rank could not start its own."""


E = TypeVar("E", bound=Engine)


def meet(invitation: Invitation, start: Callable[[World], E]) -> tuple[World, E, Claim]:
    """Waits for all ranks of the job, and until all have started.

    ``start`` owns the world's descriptors, also if it fails. ``InitError`` says whom this rank waited for in
    vain, or what a rank lacks. The claim is to be closed at the end of the world.
    """
    deadline = Deadline(invitation.timeout)
    try:
        claim = Claim(invitation, deadline)
    except OSError as error:
        raise InitError(f"Rank {invitation.rank} cannot open a socket: {explain(error)}.") from None
    try:
        with ExitStack() as stack:
            role = (Host if invitation.rank == 0 else Guest)(invitation, deadline, claim, stack)
            try:
                world = role.run()
                engine = _start(start, world, invitation)
                try:
                    role.confirm()
                except BaseException:
                    engine.shutdown()
                    raise
            except InitError as error:
                role.give_up(str(error))
                raise
            return world, engine, claim
    except BaseException:
        claim.close()
        raise


def _start(start: Callable[[World], E], world: World, invitation: Invitation) -> E:
    try:
        return start(world)
    except Exception as error:
        raise InitError(
            f"Rank {invitation.rank} (host {invitation.host}) cannot start its engine: {explain(error)}."
        ) from None
