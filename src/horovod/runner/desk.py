"""The launcher's desk: where ranks check in, and ask how another rank ended.

An abstract unix socket with the job's name, served from the supervisor's selector: no thread, no wait. The
kernel vouches for a caller's user before a byte of it is looked at; one request per connection; whoever
talks nonsense is turned away, and the first of them is told to the user. The number of callers is bounded,
and those who say nothing are the first to go. Knows nothing of processes: it is told how ranks ended.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from horovod.rendezvous.addresses import launcher_address

if TYPE_CHECKING:
    from horovod.rendezvous.desk import CheckIn, Request
    from horovod.rendezvous.messages import Packets

__all__ = ["Desk", "roll_call"]

BACKLOG = 128
SPARE_CALLERS = 64
"""How many more callers than two per rank are kept."""


class _Caller:
    """A connection, until it is answered."""

    def __init__(self, channel: Packets[Request]) -> None:
        self.channel = channel
        self.gone = False
        self.asks_about: int | None = None


class Desk:
    """Listens from the beginning; answers once :meth:`serve` is called. Use it for one job."""

    def __init__(self, job_id: str, size: int, say: Callable[[str], None], *, verbose: bool = False) -> None:
        self._size = size
        self._say = say
        self._verbose = verbose
        self._callers: list[_Caller] = []
        self._limit = SPARE_CALLERS + 2 * size
        self._present: dict[int, CheckIn] = {}
        self._ended: dict[int, str] = {}
        self.bereaved: set[int] = set()
        """Ranks that have lost another one: what becomes of them after that is not their fault."""
        self._has_refused = False
        self._can_speak = False
        self._selector: selectors.BaseSelector | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.setblocking(False)
            self._listener.bind(launcher_address(job_id))
            self._listener.listen(BACKLOG)
        except BaseException:
            self._listener.close()
            raise

    def fileno(self) -> int:
        """The listener, which no other process may keep."""
        return self._listener.fileno()

    def serve(self, selector: selectors.BaseSelector) -> None:
        """Answer from now on: whoever owns ``selector`` calls the data of what is ready."""
        self._selector = selector
        selector.register(self._listener, selectors.EVENT_READ, self._on_call)

    def tell_end(self, rank: int, how: str) -> None:
        """``rank`` has ended; whoever has asked gets to know."""
        if rank in self._ended:
            return
        self._ended[rank] = how
        for caller in [caller for caller in self._callers if caller.asks_about == rank]:
            self._answer(caller, how)

    def finish(self) -> None:
        """The job is over. Hear who has called already, since a rank may call and end at once; close."""
        if self._selector is not None:
            for _ in range(BACKLOG):
                if not self._on_call():
                    break
            for caller in [caller for caller in self._callers if caller.asks_about is None]:
                if _has_news(caller.channel):
                    self._on_request(caller)
        self.close()

    def close(self) -> None:
        """Send everybody home. May be called again."""
        for caller in list(self._callers):
            self._drop(caller)
        if self._selector is not None:
            self._selector.unregister(self._listener)
            self._selector = None
        self._listener.close()

    # -- callers

    def _learn_to_speak(self) -> None:
        """Costs more than all the rest of a launcher's start, so not before somebody calls."""
        import msgspec

        from horovod.rendezvous import desk, messages

        self._protocol, self._messages = desk, messages
        self._requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(desk.Request)
        self._can_speak = True

    def _on_call(self) -> bool:
        """Let one caller in; whether there was one."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:  # no descriptor, no memory
            if not self._make_room():
                self._refuse(f"the ranks cannot be answered any more ({error.strerror})")
                self.close()
            return False
        if not self._can_speak:
            self._learn_to_speak()
        if len(self._callers) >= self._limit:
            self._make_room()
        try:
            caller = _Caller(self._messages.Packets(connection, self._requests))
        except self._messages.ChannelError as error:
            self._refuse(f"a caller was turned away: {error}")
            return True
        self._callers.append(caller)
        assert self._selector is not None
        self._selector.register(caller.channel, selectors.EVENT_READ, lambda: self._on_request(caller))
        return True

    def _on_request(self, caller: _Caller) -> None:
        if caller.gone:  # by what happened since the selector saw it
            return
        try:
            request, descriptors = caller.channel.receive(0)
            for descriptor in descriptors:
                os.close(descriptor)
            self._take(caller, request)
        except self._messages.ChannelClosedError:
            self._drop(caller)
        except self._messages.ChannelError as error:
            self._drop(caller)
            self._refuse(f"a caller (pid {caller.channel.peer_pid}) was turned away: {error}")

    def _take(self, caller: _Caller, request: Request) -> None:
        if request.rank >= self._size or caller.asks_about is not None:
            raise self._messages.ChannelError("a request that makes no sense")
        if isinstance(request, self._protocol.CheckIn):
            self._drop(caller)
            self._check_in(request)
            return
        if request.asker >= self._size:
            raise self._messages.ChannelError("a request of no rank of this job")
        self.bereaved.add(request.asker)
        if request.rank in self._ended:
            self._answer(caller, self._ended[request.rank])
        else:
            caller.asks_about = request.rank

    def _check_in(self, facts: CheckIn) -> None:
        was_complete = len(self._present) == self._size
        self._present[facts.rank] = facts
        if self._verbose and not was_complete and len(self._present) == self._size:
            for line in roll_call(list(self._present.values())):
                self._say(line)

    def _answer(self, caller: _Caller, how: str) -> None:
        try:
            caller.channel.send(self._protocol.Ended(how))
        except (self._messages.ChannelError, TimeoutError):
            pass  # it died while it asked, or has no time to listen
        finally:
            self._drop(caller)

    def _make_room(self) -> bool:
        """Drop the oldest of those who have said nothing; else of those who wait for an answer."""
        silent = [caller for caller in self._callers if caller.asks_about is None]
        for caller in (silent or self._callers)[:1]:
            self._drop(caller)
            return True
        return False

    def _drop(self, caller: _Caller) -> None:
        caller.gone = True
        self._callers.remove(caller)
        assert self._selector is not None
        self._selector.unregister(caller.channel)
        caller.channel.close()

    def _refuse(self, why: str) -> None:
        if not self._has_refused:
            self._has_refused = True
            self._say(why)


def _has_news(channel: Packets[Request]) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(0))


def roll_call(present: Sequence[CheckIn]) -> list[str]:
    """Who is where: a table, by rank."""
    rows: list[tuple[str, ...]] = [("rank", "host", "pid", "cpus", "plane")]
    for facts in sorted(present, key=lambda facts: facts.rank):
        texts = (str(facts.rank), facts.host, str(facts.pid), facts.cpus, facts.plane)
        rows.append(tuple(_printable(text) for text in texts))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = (0, 2)  # numbers
    return [
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _printable(text: str) -> str:
    """What a process says of itself must not move the terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text) or "-"
