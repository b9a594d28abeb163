"""Rank 0's part of the meeting at ``init()``: lets the others in, sends the roster, chooses the plane."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import ExitStack

from horovod.exceptions import InitError
from horovod.rendezvous import mesh
from horovod.rendezvous.claim import Claim
from horovod.rendezvous.invitation import (
    NONCE_BYTES,
    Deadline,
    Invitation,
    M,
    World,
    expect,
    make_bell,
    read_nonce,
)
from horovod.rendezvous.limits import explain
from horovod.rendezvous.messages import (
    Addresses,
    Channel,
    ChannelError,
    Listening,
    Member,
    Message,
    Ready,
    Roster,
    Started,
    UseSharedMemory,
    UseSockets,
)
from horovod.rendezvous.reception import Reception
from horovod.rendezvous.watching import Watcher

_logger = logging.getLogger("horovod")


class Host:
    """Rank 0's part."""

    def __init__(self, invitation: Invitation, deadline: Deadline, claim: Claim, stack: ExitStack) -> None:
        self.invitation = invitation
        self.deadline = deadline
        self.claim = claim
        self.stack = stack
        self.watcher: Watcher | None = None
        self.reception = Reception(invitation, deadline)
        stack.callback(self.reception.close)

    @property
    def guests(self) -> dict[int, Channel]:
        """Who is here, by rank."""
        return self.reception.guests

    def run(self) -> World:
        """Until the plane is chosen and everything for it is here."""
        try:
            self.reception.wait()
            world = World([], make_bell())
        except OSError as error:
            raise self._failed(error) from None
        try:
            self._send_roster(world)
            if world.region is None:
                self._connect_sockets(world)
            self._watch_guests(world)
            return world
        except OSError as error:
            world.close()
            raise self._failed(error) from None
        except BaseException:
            world.close()
            raise

    def confirm(self) -> None:
        """This rank has started; waits until all have, and tells them."""
        self._collect(Started)
        self._tell_all(Started())
        if self.watcher is not None:
            self.watcher.begin()

    def give_up(self, reason: str) -> None:
        """Tells everybody why there is no world."""
        self.reception.refuse(reason)

    def _failed(self, error: OSError) -> InitError:
        mine = self.invitation
        return InitError(f"Rank 0 (host {mine.host}, pid {os.getpid()}): {explain(error)}.")

    # -- What they get

    def _send_roster(self, world: World) -> None:
        size = self.invitation.size
        nonce = secrets.token_bytes(NONCE_BYTES)
        region, problem = self._make_region(nonce)
        pids = {0: os.getpid()} | {rank: channel.peer_pid for rank, channel in self.guests.items()}
        pidfds = self._open_pidfds(pids)
        hosts = self.reception.hosts
        world.members = [Member(rank, hosts[rank], pids[rank], rank in pidfds) for rank in range(size)]
        eventfds = [self.reception.eventfds.get(rank, world.wake) for rank in range(size)]
        descriptors = [*([] if region is None else [region]), *eventfds, *(pidfds[r] for r in sorted(pidfds))]
        world.key = secrets.token_hex(NONCE_BYTES)
        roster = Roster(world.members, nonce.hex() if region is not None else "", world.key)
        for channel in self.guests.values():
            self._send(channel, roster, descriptors)
        for rank, ready in sorted(self._collect(Ready).items()):
            if region is not None and ready.region_nonce != nonce.hex():
                problem = f"rank {rank} does not share memory with rank 0 ({ready.problem or 'wrong nonce'})"
        for rank, descriptor in pidfds.items():
            if rank != 0:
                world.watch[rank] = os.dup(descriptor)
        if region is None or problem:
            self._refuse_sockets(problem)
            world.why_sockets = problem
        else:
            world.region = os.dup(region)
            world.eventfds.extend(os.dup(descriptor) for descriptor in eventfds)
            self._tell_all(UseSharedMemory())

    def _make_region(self, nonce: bytes) -> tuple[int | None, str]:
        """Shared memory with the nonce in it, if this rank at least can use it; or why there is none."""
        if self.invitation.plane == "tcp":
            return None, "HOROVOD_CPU_OPERATIONS=tcp"
        try:
            region = self.invitation.create_region()
            self.stack.callback(os.close, region)
            os.pwrite(region, nonce, self.invitation.nonce_offset)
            read_nonce(self.invitation, region)
            return region, ""
        except OSError as error:
            return None, f"no shared memory on rank 0: {explain(error)}"

    def _open_pidfds(self, pids: dict[int, int]) -> dict[int, int]:
        pidfds: dict[int, int] = {}
        problem = ""
        for rank, pid in pids.items():
            try:
                pidfds[rank] = os.pidfd_open(pid)
                self.stack.callback(os.close, pidfds[rank])
            except OSError as error:  # an old kernel, a strict sandbox, another pid namespace
                problem = explain(error)
        if problem:
            _logger.warning(
                "the kernel gives no pidfds here (pidfd_open: %s). The death of a rank is noticed by the end "
                "of its connection and by looking at /proc, a little later than otherwise",
                problem,
            )
        return pidfds

    def _refuse_sockets(self, problem: str) -> None:
        if self.invitation.plane == "shm":
            raise InitError(
                f"HOROVOD_CPU_OPERATIONS=shm, but {problem}. With auto, sockets are used instead."
            )

    def _watch_guests(self, world: World) -> None:
        """Those that have no pidfd: by their connections, which stay."""
        unseen = {
            rank: (channel.fileno(), channel.peer_pid)
            for rank, channel in self.guests.items()
            if rank not in world.watch
        }
        if unseen:
            self.watcher = Watcher(unseen)
            self.claim.keep(self.watcher)
            world.watch.update({rank: self.watcher.alarm(rank) for rank in unseen})

    def _connect_sockets(self, world: World) -> None:
        secret = secrets.token_bytes(32)
        self._tell_all(UseSockets(world.why_sockets, secret.hex()))
        with mesh.listen() as listener:
            listeners = self._collect(Listening) | {0: Listening(*listener.getsockname())}
            self._tell_all(Addresses([listeners[rank] for rank in range(self.invitation.size)]))
            addresses = {rank: (at.address, at.port) for rank, at in listeners.items()}
            try:
                world.control, world.data = mesh.connect(
                    0, addresses, listener, secret, self.deadline.left(), self._trouble
                )
            except mesh.MeshError as error:
                raise InitError(str(error)) from None

    # -- Talking with them

    def _trouble(self) -> str:
        for rank, channel in self.guests.items():
            if problem := channel.trouble():
                host = self.reception.hosts[rank]
                return f"Rank {rank} (host {host}, pid {channel.peer_pid}) ended init(): {problem}"
        return ""

    def _send(self, channel: Channel, message: Message, descriptors: list[int]) -> None:
        try:
            channel.send(message, descriptors)
        except ChannelError as error:
            raise InitError(f"A rank (pid {channel.peer_pid}) ended during init(): {error}") from None

    def _tell_all(self, message: Message) -> None:
        for channel in self.guests.values():
            self._send(channel, message, [])

    def _collect(self, kind: type[M]) -> dict[int, M]:
        replies: dict[int, M] = {}
        for rank, channel in sorted(self.guests.items()):
            try:
                message, descriptors = channel.receive(self.deadline.left())
                for descriptor in descriptors:
                    os.close(descriptor)
                replies[rank] = expect(kind, message)
            except (ChannelError, TimeoutError) as error:
                raise InitError(
                    f"Rank {rank} (host {self.reception.hosts[rank]}, pid {channel.peer_pid}) did not finish "
                    f"init(): {error}"
                ) from None
        return replies
