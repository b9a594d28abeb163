"""Rank 0's part of the meeting at ``init()``: lets the others in, sends the roster, chooses the plane."""

from __future__ import annotations

import os
import secrets
import selectors
import socket
from contextlib import ExitStack, suppress

from horovod.exceptions import InitError
from horovod.rendezvous import mesh
from horovod.rendezvous.invitation import NONCE_BYTES, Deadline, Invitation, M, World, address, expect
from horovod.rendezvous.messages import (
    Addresses,
    Channel,
    ChannelError,
    Connected,
    Hello,
    Listening,
    Member,
    Message,
    Ready,
    Refusal,
    Roster,
    UseSharedMemory,
    UseSockets,
)


class Host:
    """Rank 0's part."""

    def __init__(self, invitation: Invitation, deadline: Deadline, wake: int, stack: ExitStack) -> None:
        self.invitation = invitation
        self.deadline = deadline
        self.wake = wake
        self.stack = stack
        self.guests: dict[int, Channel] = {}
        self.hosts: dict[int, str] = {0: invitation.host}
        self.eventfds: dict[int, int] = {}
        stack.callback(self._close_eventfds)

    def run(self) -> World:
        try:
            self._wait_for_guests()
            world = self._send_roster()
            if world.region is None:
                self._connect_sockets(world)
            return world
        except InitError as error:
            self._refuse_all(str(error))
            raise

    def _close_eventfds(self) -> None:
        for descriptor in self.eventfds.values():
            os.close(descriptor)

    def _refuse_all(self, reason: str) -> None:
        for channel in self.guests.values():
            with suppress(ChannelError, TimeoutError):
                channel.send(Refusal(reason))

    # -- Who comes

    def _wait_for_guests(self) -> None:
        listener = self.stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            listener.bind(address(self.invitation))
        except OSError as error:
            raise InitError(
                f"Another process is rank 0 of this job already ({error.strerror}). Do not start two "
                "processes with the same rank, and do not call init() in a child that inherits HOROVOD_RANK."
            ) from None
        listener.listen(self.invitation.size)
        selector = self.stack.enter_context(selectors.DefaultSelector())
        selector.register(listener, selectors.EVENT_READ)
        while len(self.guests) < self.invitation.size - 1:
            if self.deadline.passed():
                raise InitError(self._missing())
            for key, _ in selector.select(self.deadline.left()):
                if key.fileobj is listener:
                    self._accept(listener, selector)
                else:
                    channel = key.data
                    selector.unregister(channel)
                    self._admit(channel)
            # A guest that ended while others are still awaited: say so now, not at the deadline.
            self._check_guests()
        for key in list(selector.get_map().values()):
            if isinstance(key.data, Channel):  # connected, but silent: no rank of ours
                key.data.close()

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        connection, _ = listener.accept()
        with suppress(ChannelError):  # another user's process: closed already
            channel = Channel(connection)
            selector.register(channel, selectors.EVENT_READ, channel)

    def _admit(self, channel: Channel) -> None:
        try:
            message, descriptors = channel.receive(1.0)
            hello = expect(Hello, message)
        except (ChannelError, InitError, TimeoutError):
            channel.close()  # it came and went, or is not one of us
            return
        problem = self._problem_with(hello, len(descriptors))
        if problem:
            for descriptor in descriptors:
                os.close(descriptor)
            with suppress(ChannelError, TimeoutError):
                channel.send(Refusal(problem))
            channel.close()
            return
        self.guests[hello.rank] = channel
        self.stack.callback(channel.close)
        self.hosts[hello.rank] = hello.host
        self.eventfds[hello.rank] = descriptors[0]

    def _problem_with(self, hello: Hello, descriptors: int) -> str:
        mine = self.invitation
        if hello.version != mine.version:
            return f"Rank {hello.rank} has version {hello.version} of Khorovod, rank 0 has {mine.version}."
        if hello.size != mine.size:
            return f"Rank {hello.rank} was told of {hello.size} ranks, rank 0 of {mine.size}."
        if not 0 < hello.rank < mine.size:
            return f"There is no rank {hello.rank} among {mine.size}."
        if hello.rank in self.guests:
            return (
                f"Rank {hello.rank} is taken already, by pid {self.guests[hello.rank].peer_pid}. "
                "A child process that inherits HOROVOD_RANK must not call init()."
            )
        if hello.plane != mine.plane:
            return (
                f"Rank {hello.rank} has HOROVOD_CPU_OPERATIONS={hello.plane}, rank 0 has {mine.plane}; "
                "set it alike on all ranks."
            )
        return "" if descriptors == 1 else "A greeting came without its descriptor."

    def _check_guests(self) -> None:
        for rank, channel in self.guests.items():
            with selectors.DefaultSelector() as one:
                one.register(channel, selectors.EVENT_READ)
                if one.select(0):  # it has nothing to say yet: this is the end of its connection
                    raise InitError(
                        f"Rank {rank} (host {self.hosts[rank]}, pid {channel.peer_pid}) ended during init()."
                    )

    def _missing(self) -> str:
        absent = [str(rank) for rank in range(1, self.invitation.size) if rank not in self.guests]
        return (
            f"Rank 0 waited {self.deadline.seconds:g} s for rank(s) {', '.join(absent)} of "
            f"{self.invitation.size}. "
            "Did they start, and do all ranks call init() equally often? HOROVOD_START_TIMEOUT sets the time."
        )

    # -- What they get

    def _send_roster(self) -> World:
        size = self.invitation.size
        region, problem = self._make_region()
        nonce = secrets.token_bytes(NONCE_BYTES)
        if region is not None:
            self.stack.callback(os.close, region)
            os.pwrite(region, nonce, self.invitation.nonce_offset)
        pids = {0: os.getpid()} | {rank: channel.peer_pid for rank, channel in self.guests.items()}
        pidfds = {rank: fd for rank in pids if (fd := _pidfd(pids[rank])) is not None}
        for descriptor in pidfds.values():
            self.stack.callback(os.close, descriptor)
        members = [Member(rank, self.hosts[rank], pids[rank], rank in pidfds) for rank in range(size)]
        self.eventfds[0] = os.dup(self.wake)
        eventfds = [self.eventfds[rank] for rank in range(size)]
        descriptors = [*([] if region is None else [region]), *eventfds, *(pidfds[r] for r in sorted(pidfds))]
        roster = Roster(members, nonce.hex() if region is not None else "")
        for channel in self.guests.values():
            self._send(channel, roster, descriptors)
        replies = self._collect(Ready)
        for rank, ready in sorted(replies.items()):
            if region is not None and ready.region_nonce != nonce.hex():
                problem = f"rank {rank} does not share memory with rank 0 ({ready.problem or 'wrong nonce'})"
        world = World(members, self.wake)
        world.watch = {r: os.dup(fd) for r, fd in pidfds.items() if r != 0}
        if region is None or problem:
            self._refuse_sockets(problem)
            world.why_sockets = problem
        else:
            world.region = os.dup(region)
            world.eventfds = [os.dup(descriptor) for descriptor in eventfds]
            self._tell_all(UseSharedMemory())
        for rank, channel in self.guests.items():
            world.watch.setdefault(rank, os.dup(channel.fileno()))
        return world

    def _make_region(self) -> tuple[int | None, str]:
        if self.invitation.plane == "tcp":
            return None, "HOROVOD_CPU_OPERATIONS=tcp"
        try:
            return self.invitation.create_region(), ""
        except OSError as error:
            return None, f"no shared memory on this machine: {error}"

    def _refuse_sockets(self, problem: str) -> None:
        if self.invitation.plane == "shm":
            raise InitError(
                f"HOROVOD_CPU_OPERATIONS=shm, but {problem}. With auto, sockets are used instead."
            )

    def _connect_sockets(self, world: World) -> None:
        secret = secrets.token_bytes(32)
        self._tell_all(UseSockets(world.why_sockets, secret.hex()))
        with mesh.listen() as listener:
            listeners = self._collect(Listening) | {0: Listening(*listener.getsockname())}
            self._tell_all(Addresses([listeners[rank] for rank in range(self.invitation.size)]))
            addresses = {rank: (at.address, at.port) for rank, at in listeners.items()}
            try:
                world.control, world.data = mesh.connect(0, addresses, listener, secret, self.deadline.left())
            except mesh.MeshError as error:
                raise InitError(str(error)) from None
        for rank, reply in self._collect(Connected).items():
            if reply.problem:
                raise InitError(f"Rank {rank}: {reply.problem}")
        self._tell_all(Connected())

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
                message, _ = channel.receive(self.deadline.left())
                replies[rank] = expect(kind, message)
            except (ChannelError, TimeoutError) as error:
                raise InitError(
                    f"Rank {rank} (host {self.hosts[rank]}, pid {channel.peer_pid}) did not finish init(): "
                    f"{error}"
                ) from None
        return replies


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, a strict sandbox, another pid namespace
        return None
