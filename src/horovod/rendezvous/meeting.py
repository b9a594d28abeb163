"""The meeting at ``init()``: the ranks of one machine find each other on an abstract unix socket.

Rank 0 listens under a name made of the job and the number of this ``init()``; the others connect. Rank 0
sends everybody the roster, with a region of shared memory and the descriptors by which ranks wake and watch
each other; where a rank cannot see the region, all use sockets instead. Every wait ends at the deadline, and
the error says who was missing. Knows nothing of the engine: the outcome is a bag of facts and descriptors.
"""

from __future__ import annotations

import mmap
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from horovod.exceptions import InitError
from horovod.rendezvous import mesh
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

NONCE_BYTES = 16
_GRACE = 2.0
M = TypeVar("M")


@dataclass(frozen=True)
class Invitation:
    """What a rank brings to the meeting."""

    rank: int
    size: int
    host: str
    job_id: str
    generation: int
    version: str
    plane: str
    """``auto``, ``shm`` or ``tcp``"""
    timeout: float
    create_region: Callable[[], int]
    """Makes the shared region and returns its descriptor; ``OSError`` if this machine cannot."""
    nonce_offset: int
    """Where in the region the nonce goes."""


@dataclass
class World:
    """What a rank takes home. It owns the descriptors until the engine does."""

    members: list[Member]
    wake: int
    """This rank's eventfd."""
    watch: dict[int, int] = field(default_factory=dict)
    """For other ranks: a descriptor that becomes readable when the rank dies."""
    region: int | None = None
    eventfds: list[int] = field(default_factory=list)
    control: dict[int, int] = field(default_factory=dict)
    data: dict[int, int] = field(default_factory=dict)
    why_sockets: str = ""
    claim: socket.socket | None = None
    """While it is open, nobody else can be this rank; to be closed at the end of the world."""

    def close(self) -> None:
        """Closes everything, when it comes to nothing."""
        if self.claim is not None:
            self.claim.close()
        owned = [self.wake, *self.watch.values(), *self.eventfds, *self.control.values(), *self.data.values()]
        for descriptor in owned if self.region is None else [*owned, self.region]:
            with suppress(OSError):
                os.close(descriptor)


def meet(invitation: Invitation) -> World:
    """Waits for all ranks of the job; ``InitError`` says whom it waited for in vain."""
    deadline = _Deadline(invitation.timeout)
    claim = _claim(invitation)
    wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        with ExitStack() as stack:
            role = _Host if invitation.rank == 0 else _Guest
            world = role(invitation, deadline, wake, stack).run()
            world.claim = claim
            return world
    except BaseException:
        claim.close()
        with suppress(OSError):
            os.close(wake)
        raise


def _claim(invitation: Invitation) -> socket.socket:
    """Takes this rank's name, which the kernel gives away once. A child that inherits the environment stops here."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"{_address(invitation)}-rank-{invitation.rank}")
    except OSError as error:
        claim.close()
        raise InitError(
            f"Another process is rank {invitation.rank} of this job already ({error.strerror}). Do not start two "
            "processes with the same rank, and do not call init() in a child process that inherits HOROVOD_RANK "
            "(or what else your launcher sets) from a rank."
        ) from None
    return claim


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.001, self._end - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self._end


def _address(invitation: Invitation) -> str:
    return f"\0khorovod-{invitation.job_id}-{invitation.generation}"


def _expect(kind: type[M], message: Message) -> M:
    if isinstance(message, Refusal):
        raise InitError(message.reason)
    if not isinstance(message, kind):
        raise ChannelError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message


class _Host:
    """Rank 0's part."""

    def __init__(self, invitation: Invitation, deadline: _Deadline, wake: int, stack: ExitStack) -> None:
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
            listener.bind(_address(self.invitation))
        except OSError as error:
            raise InitError(
                f"Another process is rank 0 of this job already ({error.strerror}). Do not start two processes "
                "with the same rank, and do not call init() in a child that inherits HOROVOD_RANK."
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
                elif key.data not in self.guests.values():
                    channel = key.data
                    selector.unregister(channel)
                    if self._admit(channel):
                        selector.register(channel, selectors.EVENT_READ, channel)  # for its end
            # A guest that ended while others are still awaited: say so now, not at the deadline.
            self._check_guests()
        for key in list(selector.get_map().values()):
            if isinstance(key.data, Channel) and key.data not in self.guests.values():
                key.data.close()  # connected, but silent: no rank of ours

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        connection, _ = listener.accept()
        with suppress(ChannelError):  # another user's process: closed already
            channel = Channel(connection)
            selector.register(channel, selectors.EVENT_READ, channel)

    def _admit(self, channel: Channel) -> bool:
        try:
            hello, descriptors = channel.receive(1.0)
        except (ChannelError, TimeoutError):
            channel.close()  # it came and went, or is not one of us
            return False
        problem = "The first message must be a greeting."
        if isinstance(hello, Hello):
            problem = self._problem_with(hello, len(descriptors))
        if problem or not isinstance(hello, Hello):
            for descriptor in descriptors:
                os.close(descriptor)
            with suppress(ChannelError, TimeoutError):
                channel.send(Refusal(problem))
            channel.close()
            return False
        self.guests[hello.rank] = channel
        self.stack.callback(channel.close)
        self.hosts[hello.rank] = hello.host
        self.eventfds[hello.rank] = descriptors[0]
        return True

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
                f"Rank {hello.rank} is taken by another process already (pid {self.guests[hello.rank].peer_pid}). "
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
            f"Rank 0 waited {self.deadline.seconds:g} s for rank(s) {', '.join(absent)} of {self.invitation.size}. "
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
            if rank not in world.watch:
                world.watch[rank] = os.dup(channel.fileno())
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
            raise InitError(f"HOROVOD_CPU_OPERATIONS=shm, but {problem}. With auto, sockets are used instead.")

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
                replies[rank] = _expect(kind, message)
            except (ChannelError, TimeoutError) as error:
                raise InitError(
                    f"Rank {rank} (host {self.hosts[rank]}, pid {channel.peer_pid}) did not finish init(): {error}"
                ) from None
        return replies


class _Guest:
    """Every other rank's part."""

    def __init__(self, invitation: Invitation, deadline: _Deadline, wake: int, stack: ExitStack) -> None:
        self.invitation = invitation
        self.deadline = deadline
        self.wake = wake
        self.stack = stack

    def run(self) -> World:
        try:
            self.host = self._find_host()
            self.stack.callback(self.host.close)
            # Rank 0 was here before, so its time runs out first: it knows, and tells, who is missing.
            self.deadline = _Deadline(self.invitation.timeout + _GRACE)
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
        pause = 0.001
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(_address(self.invitation))
                return Channel(connection)
            except (ConnectionRefusedError, BlockingIOError):
                connection.close()
            if self.deadline.passed():
                raise InitError(
                    f"Rank {self.invitation.rank} waited {self.deadline.seconds:g} s for rank 0 of job "
                    f"{self.invitation.job_id} (init() number {self.invitation.generation}). Did it start, on this "
                    "machine, and do all ranks call init() equally often? HOROVOD_START_TIMEOUT sets the time."
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _take_roster(self) -> World:
        message, descriptors = self.host.receive(self.deadline.left())
        for descriptor in descriptors:
            self.stack.callback(os.close, descriptor)
        roster = _expect(Roster, message)
        mine = self.invitation
        region = descriptors.pop(0) if roster.region_nonce else None
        eventfds, pidfds = descriptors[: mine.size], descriptors[mine.size :]
        self.host.send(self._look_into(region))
        world = World(roster.members, self.wake)
        watched = [member.rank for member in roster.members if member.has_pidfd]
        world.watch = {rank: os.dup(fd) for rank, fd in zip(watched, pidfds, strict=True) if rank != mine.rank}
        message, _ = self.host.receive(self.deadline.left())
        if isinstance(message, UseSharedMemory) and region is not None:
            world.region = os.dup(region)
            world.eventfds = [os.dup(descriptor) for descriptor in eventfds]
        else:
            self._connect_sockets(world, _expect(UseSockets, message))
        if 0 not in world.watch:
            world.watch[0] = os.dup(self.host.fileno())
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
            listeners = _expect(Addresses, message).listeners
            addresses = {peer: (at.address, at.port) for peer, at in enumerate(listeners)}
            try:
                world.control, world.data = mesh.connect(rank, addresses, listener, secret, self.deadline.left())
            except mesh.MeshError as error:
                self.host.send(Connected(str(error)))
                raise InitError(str(error)) from None
        self.host.send(Connected())
        message, _ = self.host.receive(self.deadline.left())
        _expect(Connected, message)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, a strict sandbox, another pid namespace
        return None
