"""The part of every rank but 0 in the meeting at ``init()``: finds rank 0, takes the roster, joins."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack

from horovod.exceptions import InitError
from horovod.rendezvous import mesh
from horovod.rendezvous.claim import Claim
from horovod.rendezvous.invitation import Deadline, Invitation, World, address, expect, make_bell, read_nonce
from horovod.rendezvous.limits import explain
from horovod.rendezvous.messages import (
    LAST_SECONDS,
    Addresses,
    Channel,
    ChannelError,
    Hello,
    Listening,
    Member,
    Message,
    Ready,
    Roster,
    Started,
    UseSharedMemory,
    UseSockets,
)
from horovod.rendezvous.watching import Watcher

_GRACE = 2.0  # seconds
_CAUSE_SECONDS = 1.0


class Guest:
    """Every other rank's part."""

    def __init__(self, invitation: Invitation, deadline: Deadline, claim: Claim, stack: ExitStack) -> None:
        self.invitation = invitation
        self.deadline = deadline
        self.claim = claim
        self.stack = stack
        self.host: Channel | None = None
        self.watcher: Watcher | None = None

    def run(self) -> World:
        """Until the plane is chosen and everything for it is here."""
        try:
            self.host = self._find_host()
            self.stack.callback(self.host.close)
            # Rank 0 was here before, so its time runs out first: it knows, and tells, who is missing.
            self.deadline = Deadline(self.invitation.timeout + _GRACE)
            world = World([], self._greet(self.host))
        except (ChannelError, OSError) as error:
            raise self._failed(error) from None
        try:
            self._take_roster(self.host, world)
            return world
        except (ChannelError, OSError) as error:
            world.close()
            raise self._failed(error) from None
        except BaseException:
            world.close()
            raise

    def confirm(self) -> None:
        """This rank has started; waits until all have."""
        try:
            if self.host is not None:
                self.host.send(Started())
                expect(Started, self._hear(self.host))
            if self.watcher is not None:
                self.watcher.begin()
        except (ChannelError, OSError) as error:
            raise self._failed(error) from None

    def give_up(self, reason: str) -> None:
        """Tells rank 0, and so everybody, why this rank cannot go on."""
        if self.host is not None:
            self.host.refuse(reason)
            self.host.drain(time.monotonic() + LAST_SECONDS)

    def _failed(self, error: ChannelError | OSError) -> InitError:
        mine = self.invitation
        if isinstance(error, ChannelError):
            return InitError(f"Rank {mine.rank} lost rank 0 during init(): {error}.")
        if isinstance(error, TimeoutError):
            return InitError(
                f"Rank {mine.rank} waited {self.deadline.seconds:g} s for the other ranks. "
                "The error of rank 0 names the missing ones. HOROVOD_START_TIMEOUT sets the time."
            )
        return InitError(f"Rank {mine.rank} (host {mine.host}, pid {os.getpid()}): {explain(error)}.")

    def _find_host(self) -> Channel:
        mine = self.invitation
        pause = 0.001
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(self.deadline.left())  # else it would wait for room at rank 0's door
            try:
                connection.connect(address(self.invitation))
                return Channel(connection)
            except (ConnectionRefusedError, BlockingIOError, TimeoutError):
                connection.close()
            if self.deadline.passed():
                raise InitError(
                    f"Rank {mine.rank} waited {self.deadline.seconds:g} s for rank 0 of job {mine.job_id} "
                    f"(init() number {mine.generation}). Did it start, on this machine, and do all ranks "
                    "call init() equally often? HOROVOD_START_TIMEOUT sets the time."
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _greet(self, host: Channel) -> int:
        """Comes in, with this rank's bell; or says that there is none."""
        mine = self.invitation
        try:
            wake = make_bell()
        except OSError as error:
            problem = f"no eventfd ({explain(error)})"
            host.send(Hello(mine.rank, mine.size, mine.host, mine.version, mine.plane, problem))
            raise
        try:
            host.send(Hello(mine.rank, mine.size, mine.host, mine.version, mine.plane), [wake])
        except BaseException:
            os.close(wake)
            raise
        return wake

    def _hear(self, host: Channel) -> Message:
        """A message that has no descriptors beside it."""
        message, descriptors = host.receive(self.deadline.left())
        for descriptor in descriptors:
            os.close(descriptor)
        return message

    def _take_roster(self, host: Channel, world: World) -> None:
        message, descriptors = host.receive(self.deadline.left())
        for descriptor in descriptors:
            self.stack.callback(os.close, descriptor)
        roster = expect(Roster, message)
        mine = self.invitation
        _check(roster, len(descriptors), mine.size)
        region = descriptors.pop(0) if roster.region_nonce else None
        eventfds, pidfds = descriptors[: mine.size], descriptors[mine.size :]
        host.send(self._look_into(region))
        world.members, world.key = roster.members, roster.key
        watched = [member.rank for member in roster.members if member.has_pidfd]
        for rank, descriptor in zip(watched, pidfds, strict=True):
            if rank != mine.rank:
                world.watch[rank] = os.dup(descriptor)
        message = self._hear(host)
        if isinstance(message, UseSharedMemory) and region is not None:
            world.region = os.dup(region)
            world.eventfds.extend(os.dup(descriptor) for descriptor in eventfds)
        else:
            self._connect_sockets(host, world, expect(UseSockets, message))
        self._watch_host(host, world, roster.members)

    def _watch_host(self, host: Channel, world: World, members: list[Member]) -> None:
        """Where there are no pidfds: its connection stays, for either side to notice the other's end."""
        if members[0].has_pidfd and members[self.invitation.rank].has_pidfd:
            return
        self.watcher = Watcher({0: (host.fileno(), host.peer_pid)})
        self.claim.keep(self.watcher)
        if 0 not in world.watch:
            world.watch[0] = self.watcher.alarm(0)

    def _look_into(self, region: int | None) -> Ready:
        """Proves that this process sees the memory that rank 0 wrote to."""
        if region is None:
            return Ready("", "no region")
        try:
            return Ready(read_nonce(self.invitation, region).hex())
        except (OSError, ValueError) as error:
            return Ready("", explain(error))

    def _connect_sockets(self, host: Channel, world: World, use: UseSockets) -> None:
        world.why_sockets = use.reason
        try:
            secret = bytes.fromhex(use.secret)
        except ValueError:
            raise ChannelError("the secret makes no sense") from None
        rank = self.invitation.rank
        with mesh.listen() as listener:
            host.send(Listening(*listener.getsockname()))
            listeners = expect(Addresses, self._hear(host)).listeners
            if len(listeners) != self.invitation.size:
                raise ChannelError("the addresses are not those of all ranks")
            addresses = {peer: (at.address, at.port) for peer, at in enumerate(listeners)}
            try:
                world.control, world.data = mesh.connect(
                    rank, addresses, listener, secret, self.deadline.left(), host.trouble
                )
            except mesh.MeshError as error:
                raise InitError(self._first_cause(host) or str(error)) from None

    def _first_cause(self, host: Channel) -> str:
        """A rank that cannot be reached may have left because of another: rank 0 knows, in a moment."""
        end = time.monotonic() + _CAUSE_SECONDS
        while not (cause := host.trouble()) and time.monotonic() < end:
            time.sleep(0.01)
        return cause


def _check(roster: Roster, descriptors: int, size: int) -> None:
    ranks = [member.rank for member in roster.members]
    expected = size + sum(member.has_pidfd for member in roster.members) + (1 if roster.region_nonce else 0)
    if ranks != list(range(size)) or descriptors != expected:
        raise ChannelError("the roster makes no sense")
