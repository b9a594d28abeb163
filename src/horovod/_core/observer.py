"""What the engine asks of the program around it: where it stands, how it ends, how a lost rank ended.

The engine calls :func:`place` and :func:`warn` on a thread of its own, when ranks wait for each other for too
long. Knows nothing of negotiation; what a stall report says is the engine's business.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType

from horovod._core.log import logger
from horovod._identity import Identity
from horovod.exceptions import (
    EngineShutdownError,
    HorovodInternalError,
    MismatchError,
    PeerLostError,
)

__all__ = ["error_makers", "how_the_program_ends", "place", "warn"]

ASK_SECONDS = 2.0
"""How long an error waits at most for the launcher to say how a rank ended, which it knows when that has."""
_MOST_FRAMES = 12
_MOST_CHARACTERS = 200

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple({os.path.abspath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")})


def place() -> str:
    """Where the main thread stands: the program's own line, then the stack, the innermost call first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = [(code, line) for code, line in _walk(frame) if not _is_under(code, _OURS)]
    if not stack:
        return ""
    shown = [_where(code, line) for code, line in stack[:_MOST_FRAMES]]
    own = next((_where(code, line) for code, line in stack if not _is_library(code)), shown[0])
    first = own if own == shown[0] else f"{own} (inside {shown[0]})"
    return "\n".join([first, *shown])


def warn(text: str) -> None:
    """Tells the user."""
    logger.warning(text)


def how_the_program_ends() -> str:
    """For the other ranks, when this one leaves because its program ends."""
    # The exception that ends a program is noted here before the interpreter shows it.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException) or hasattr(sys, "ps1"):
        return "its program ended"
    text = f"its program ended with {type(error).__name__}: {error}"[:_MOST_CHARACTERS].replace("\n", " ")
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return text if traceback is None else f"{text} ({_where(traceback.tb_frame.f_code, traceback.tb_lineno)})"


def error_makers(who: Identity) -> tuple[Callable[[str, int], BaseException], ...]:
    """Make exceptions of a message and, of a lost rank, its number; in the order of the native Code."""
    lost_peer = LostPeer(who)
    return (
        _plain(HorovodInternalError),
        _plain(ValueError),
        _plain(MismatchError),
        lost_peer,
        lost_peer,
        _plain(EngineShutdownError),
        _plain(HorovodInternalError),
        _plain(HorovodInternalError),
    )


def _plain(kind: type[BaseException]) -> Callable[[str, int], BaseException]:
    return lambda message, _rank: kind(message)


class LostPeer:
    """Makes the error of a lost rank. The launcher alone knows exit codes and signals: it is asked, once."""

    def __init__(self, who: Identity) -> None:
        self._who = who
        self._lock = threading.Lock()
        self._told: dict[int, str | None] = {}

    def __call__(self, message: str, rank: int) -> PeerLostError:
        how = self._how_ended(rank) if rank >= 0 and self._who.launcher == "horovodrun" else None
        return PeerLostError(message if how is None else f"{message}. horovodrun saw rank {rank} end: {how}")

    def _how_ended(self, rank: int) -> str | None:
        # Only when something went wrong: not worth importing at every start.
        from horovod.rendezvous import desk

        with self._lock:
            if rank not in self._told:
                self._told[rank] = desk.how_ended(self._who.job_id, rank, ASK_SECONDS, asker=self._who.rank)
            return self._told[rank]


def _walk(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _is_under(code: CodeType, *directories: str) -> bool:
    return os.path.abspath(code.co_filename).startswith(tuple(d + os.sep for d in directories))


def _is_library(code: CodeType) -> bool:
    return code.co_filename.startswith("<frozen") or _is_under(code, *_LIBRARIES)


def _where(code: CodeType, line: int) -> str:
    path = code.co_filename
    here = os.getcwd() + os.sep
    return f"{path.removeprefix(here)}:{line} in {code.co_qualname}"
