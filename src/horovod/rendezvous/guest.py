"""The part of every rank but 0 in the meeting at ``init()``: finds rank 0, takes the roster, joins."""

from __future__ import annotations

import mmap
import os
import socket
import time
from contextlib import ExitStack

from horovod.exceptions import InitError
from horovod.rendezvous import mesh
from horovod.rendezvous.invitation import NONCE_BYTES, Deadline, Invitation, World, address, expect
from horovod.rendezvous.messages import (
    Addresses,
    Channel,
    ChannelError,
    Connected,
    Hello,
    Listening,
    Ready,
    Roster,
    UseSharedMemory,
    UseSockets,
)


class Guest:
    """Every other rank's part."""

    def __init__(self, invitation: Invitation, deadline: Deadline, wake: int, stack: ExitStack) -> None:
        self.invitation = invitation
        self.deadline = deadline
        self.wake = wake
        self.stack = stack

    def run(self) -> World:
        try:
            self.host = self._find_host()
            self.stack.callback(self.host.close)
            mine = self.invitation
            self.host.send(Hello(mine.rank, mine.size, mine.host, mine.version, mine.plane), [self.wake])
            return self._take_roster()
        except ChannelError as error:
            raise InitError(f"Rank {self.invitation.rank} lost rank 0 during init(): {error}.") from None
        except TimeoutError:
            raise InitError(
                f"Rank {self.invitation.rank} waited {self.deadline.seconds:g} s for the other ranks. "
                "The error of rank 0 names the missing ones. HOROVOD_START_TIMEOUT sets the time."
            ) from None

    def _find_host(self) -> Channel:
        mine = self.invitation
        pause = 0.001
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(address(self.invitation))
                return Channel(connection)
            except (ConnectionRefusedError, BlockingIOError):
                connection.close()
            if self.deadline.passed():
                raise InitError(
                    f"Rank {mine.rank} waited {self.deadline.seconds:g} s for rank 0 of job {mine.job_id} "
                    f"(init() number {mine.generation}). Did it start, on this machine, and do all ranks "
                    "call init() equally often? HOROVOD_START_TIMEOUT sets the time."
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _take_roster(self) -> World:
        message, descriptors = self.host.receive(self.deadline.left())
        for descriptor in descriptors:
            self.stack.callback(os.close, descriptor)
        roster = expect(Roster, message)
        mine = self.invitation
        region = descriptors.pop(0) if roster.region_nonce else None
        eventfds, pidfds = descriptors[: mine.size], descriptors[mine.size :]
        self.host.send(self._look_into(region))
        world = World(roster.members, self.wake)
        watched = [member.rank for member in roster.members if member.has_pidfd]
        world.watch = {
            rank: os.dup(fd) for rank, fd in zip(watched, pidfds, strict=True) if rank != mine.rank
        }
        message, _ = self.host.receive(self.deadline.left())
        if isinstance(message, UseSharedMemory) and region is not None:
            world.region = os.dup(region)
            world.eventfds = [os.dup(descriptor) for descriptor in eventfds]
        else:
            self._connect_sockets(world, expect(UseSockets, message))
        world.watch.setdefault(0, os.dup(self.host.fileno()))
        return world

    def _look_into(self, region: int | None) -> Ready:
        """Proves that this process sees the memory that rank 0 wrote to."""
        if region is None:
            return Ready("", "no region")
        try:
            with mmap.mmap(region, 4096, prot=mmap.PROT_READ) as page:
                offset = self.invitation.nonce_offset
                return Ready(page[offset : offset + NONCE_BYTES].hex())
        except (OSError, ValueError) as error:
            return Ready("", str(error))

    def _connect_sockets(self, world: World, use: UseSockets) -> None:
        world.why_sockets = use.reason
        secret = bytes.fromhex(use.secret)
        rank = self.invitation.rank
        with mesh.listen() as listener:
            self.host.send(Listening(*listener.getsockname()))
            message, _ = self.host.receive(self.deadline.left())
            listeners = expect(Addresses, message).listeners
            addresses = {peer: (at.address, at.port) for peer, at in enumerate(listeners)}
            try:
                world.control, world.data = mesh.connect(
                    rank, addresses, listener, secret, self.deadline.left()
                )
            except mesh.MeshError as error:
                self.host.send(Connected(str(error)))
                raise InitError(str(error)) from None
        self.host.send(Connected())
        message, _ = self.host.receive(self.deadline.left())
        expect(Connected, message)
