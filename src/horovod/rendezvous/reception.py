"""Rank 0's door: lets the ranks in, one of each, and turns everybody else away."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from contextlib import suppress

from horovod.exceptions import InitError
from horovod.rendezvous.claim import impostor
from horovod.rendezvous.invitation import Deadline, Invitation, address
from horovod.rendezvous.messages import (
    LAST_SECONDS,
    Channel,
    ChannelError,
    Hello,
    Message,
    NoRoomError,
    Refusal,
)
from horovod.rendezvous.strangers import Strangers

_MOST_SILENT = 64  # connections that have not said anything
_SILENT_SECONDS = 10.0


class Reception:
    """Waits for every other rank, and keeps its channel, host and eventfd."""

    def __init__(self, invitation: Invitation, deadline: Deadline) -> None:
        self.guests: dict[int, Channel] = {}
        self.hosts: dict[int, str] = {0: invitation.host}
        self.eventfds: dict[int, int] = {}
        self._invitation = invitation
        self._deadline = deadline
        self._silent: dict[Channel, float] = {}  # since when, the oldest first
        self._refused: dict[int, str] = {}
        self._selector = selectors.PollSelector()
        self._strangers = Strangers("init()")
        self._listener: socket.socket | None = None
        self._spare: list[int] = []  # a descriptor, to tell somebody that there are none

    def close(self) -> None:
        """Ends all connections."""
        self._selector.close()
        if self._listener is not None:
            self._listener.close()
        while self._spare:
            os.close(self._spare.pop())
        for channel in [*self.guests.values(), *self._silent]:
            channel.close()
        for descriptor in self.eventfds.values():
            os.close(descriptor)

    def wait(self) -> None:
        """Until all ranks are here; ``InitError`` if one of them is missing, or cannot take part."""
        self._spare.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        listener = self._listen()
        try:
            while len(self.guests) < self._invitation.size - 1:
                if self._deadline.passed():
                    raise InitError(self._missing())
                for key, _ in self._selector.select(min(1.0, self._deadline.left())):
                    if key.fileobj is listener:
                        self._accept(listener)
                    else:
                        self._hear(key.data)
                self._drop_silent(time.monotonic() - _SILENT_SECONDS, "it says nothing")
            self._drop_silent(time.monotonic(), "all ranks are here")
        finally:
            self._strangers.sum_up()

    def refuse(self, reason: str) -> None:
        """There will be no world: tells everybody who is here, and for a moment those who still come."""
        end = time.monotonic() + LAST_SECONDS
        here = [*self.guests.values(), *self._silent]
        for channel in here:
            channel.refuse(reason)
        for channel in here:
            channel.drain(end)
        late = self._invitation.size - 1 - len(self.guests)
        while self._spare:
            os.close(self._spare.pop())
        while self._listener is not None and late > 0 and (left := end - time.monotonic()) > 0:
            self._listener.settimeout(left)
            with suppress(ChannelError, OSError):
                channel = Channel(self._listener.accept()[0])
                channel.refuse(reason)
                channel.drain(end)
                channel.close()
                late -= 1

    def _listen(self) -> socket.socket:
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(address(self._invitation))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise InitError(
                "Another process is rank 0 of this job already. Do not start two processes with the same "
                "rank, and do not call init() in a child that inherits HOROVOD_RANK."
            ) from None
        listener.setblocking(False)
        listener.listen(max(128, self._invitation.size))
        self._selector.register(listener, selectors.EVENT_READ)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._silent:
                raise
            self._drop(next(iter(self._silent)), "there are too many")
            return
        try:
            channel = Channel(connection)
        except ChannelError as error:  # another user's process: closed already
            self._strangers.turn_away("a connection", str(error))
            return
        self._silent[channel] = time.monotonic()
        self._selector.register(channel, selectors.EVENT_READ, channel)
        if len(self._silent) > _MOST_SILENT + self._invitation.size:
            self._drop(next(iter(self._silent)), "there are too many")

    def _drop(self, channel: Channel, why: str) -> None:
        self._strangers.turn_away(f"pid {channel.peer_pid}", why)
        self._selector.unregister(channel)
        self._silent.pop(channel, None)
        channel.close()

    def _drop_silent(self, since: float, why: str) -> None:
        for channel in [one for one, began in self._silent.items() if began <= since]:
            self._drop(channel, why)

    def _hear(self, channel: Channel) -> None:
        if channel in self.guests.values():
            self._check_guest(channel)
        if channel not in self._silent:
            return  # dropped in this round
        try:
            message, descriptors = channel.receive(1.0, most=1)
        except NoRoomError as error:
            raise InitError(f"Rank 0 (host {self._invitation.host}, pid {os.getpid()}): {error}.") from None
        except (ChannelError, TimeoutError) as error:
            self._drop(channel, str(error))
            return
        problem = self._problem_with(message, len(descriptors), channel.peer_pid)
        if problem or not isinstance(message, Hello):
            for descriptor in descriptors:
                os.close(descriptor)
            with suppress(ChannelError):
                channel.send(Refusal(problem))  # all that it sent has been read
            self._drop(channel, problem)
            return
        del self._silent[channel]
        self.guests[message.rank] = channel
        self.hosts[message.rank] = message.host
        if message.problem:
            raise InitError(f"{self._describe(message.rank)} cannot take part: {message.problem}.")
        self.eventfds[message.rank] = descriptors[0]

    def _problem_with(self, hello: Message, descriptors: int, pid: int) -> str:
        mine = self._invitation
        if not isinstance(hello, Hello):
            return "A greeting comes first."
        if hello.size != mine.size:
            return f"Rank {hello.rank} was told of {hello.size} ranks, rank 0 of {mine.size}."
        if not 0 < hello.rank < mine.size:
            return f"There is no rank {hello.rank} among {mine.size}."
        problem = self._problem_with_rank(hello, pid)
        if problem:
            self._refused[hello.rank] = problem
        elif descriptors != (0 if hello.problem else 1):
            return "A greeting came without its descriptor."
        return problem

    def _problem_with_rank(self, hello: Hello, pid: int) -> str:
        mine = self._invitation
        if hello.version != mine.version:
            return f"Rank {hello.rank} has version {hello.version} of Khorovod, rank 0 has {mine.version}."
        if hello.rank in self.guests:
            return (
                f"Rank {hello.rank} is taken already, by pid {self.guests[hello.rank].peer_pid}. "
                "A child process that inherits HOROVOD_RANK must not call init()."
            )
        if owner := impostor(mine, hello.rank, pid):
            return f"Rank {hello.rank} is pid {owner}, not pid {pid}."
        if hello.plane != mine.plane:
            return (
                f"Rank {hello.rank} has HOROVOD_CPU_OPERATIONS={hello.plane}, rank 0 has {mine.plane}; "
                "set it alike on all ranks."
            )
        return ""

    def _check_guest(self, channel: Channel) -> None:
        """A guest has nothing to say yet: its connection ended. Say so now, not at the deadline."""
        rank = next(rank for rank, guest in self.guests.items() if guest is channel)
        raise InitError(f"{self._describe(rank)} ended during init().")

    def _describe(self, rank: int) -> str:
        return f"Rank {rank} (host {self.hosts[rank]}, pid {self.guests[rank].peer_pid})"

    def _missing(self) -> str:
        absent = [rank for rank in range(1, self._invitation.size) if rank not in self.guests]
        refused = [f" Refused: {self._refused[rank]}" for rank in absent if rank in self._refused]
        return (
            f"Rank 0 waited {self._deadline.seconds:g} s for rank(s) {', '.join(map(str, absent))} of "
            f"{self._invitation.size}. Did they start, and do all ranks call init() equally often? "
            f"HOROVOD_START_TIMEOUT sets the time.{''.join(refused)}"
        )
