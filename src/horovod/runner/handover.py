"""How a function gets to the ranks, and what became of it back: files in a directory that only this user can
read. The one place where functions are pickled.

Its path is no secret, what is in it is: the directory is made with mode 0700, and a rank reads from it only
if it still is so and belongs to the rank's own user.
"""

from __future__ import annotations

import os
import pickle
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cloudpickle

__all__ = ["VARIABLE", "Call", "Failure", "Handover", "Success"]

VARIABLE = "HOROVOD_RUN_DIRECTORY"
"""Tells a rank where the directory is."""
_CALL, _PATH, _OUTCOME = "call", "path", "outcome"


@dataclass(frozen=True)
class Call:
    """What every rank shall do."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Success:
    """What the function returned on a rank."""

    value: Any


@dataclass(frozen=True)
class Failure:
    """How it failed on a rank."""

    at: float
    """By the machine's monotonic clock."""
    peer_lost: bool
    """Whether that was because another rank had failed."""
    summary: str
    text: str
    """The traceback."""
    pickled: bytes
    """The exception, if it can be had; else empty."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """How this error is told."""
        # By name: what the launcher needs must not import the engine.
        lost = any(kind.__name__ == "PeerLostError" for kind in type(error).__mro__)
        lines = traceback.format_exception(error)
        summary = traceback.format_exception_only(error)[-1].strip()
        return cls(time.monotonic(), lost, summary, "".join(lines), _pickled_exception(error))

    def exception(self) -> BaseException | None:
        """The exception itself, where its class can be imported."""
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # whatever loading a foreign class may raise
            return None
        return error if isinstance(error, BaseException) else None


class Handover:
    """The directory. The caller makes it and takes it away again; ranks open it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def create(cls) -> Handover:
        """A new one."""
        return cls(Path(tempfile.mkdtemp(prefix="khorovod-run-")))

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> Handover:
        """The one that this rank was told of, if nobody else can have put anything there."""
        directory = Path(environ[VARIABLE])
        facts = directory.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise PermissionError(f"{directory} is not private to this user: nothing is read from it")
        return cls(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        for path in self.directory.iterdir():
            path.unlink()
        self.directory.rmdir()

    # -- the caller's side

    def give(self, call: Call) -> None:
        """For the ranks: the function, and where its modules are found."""
        self._write(_PATH, pickle.dumps((sys.executable, sys.path)))
        with self._file(_CALL).open("wb") as file:
            try:
                cloudpickle.dump(call, file)
            except OSError:
                raise
            except Exception as error:  # whatever pickling a foreign object may raise
                message = f"The function or its arguments cannot be sent to the ranks: {error}"
                raise TypeError(message) from error

    def outcome_of(self, rank: int) -> Success | Failure | None:
        """What a rank left behind; None if it ended before it could."""
        path = self._file(_OUTCOME, rank)
        if not path.exists():
            return None
        with path.open("rb") as file:
            try:
                outcome: Success | Failure = pickle.load(file)
            except Exception as error:  # whatever loading a foreign class may raise
                message = f"The result of rank {rank} cannot be read here: {type(error).__name__}: {error}"
                raise RuntimeError(message) from error
        return outcome

    # -- a rank's side

    def take(self) -> Call:
        """What to do."""
        executable, paths = pickle.loads(self._file(_PATH).read_bytes())
        if executable == sys.executable:  # names mean the same modules here as there
            sys.path[:] = paths + [path for path in sys.path if path not in paths]
        else:
            sys.path += [path for path in paths if path not in sys.path]
        with self._file(_CALL).open("rb") as file:
            call: Call = pickle.load(file)
        return call

    def leave(self, rank: int, outcome: Success | Failure) -> None:
        """Whole, or not at all."""
        path = self._file(_OUTCOME, rank)
        draft = path.with_name(path.name + ".draft")
        with draft.open("wb") as file:
            cloudpickle.dump(outcome, file)
        draft.rename(path)

    def _file(self, name: str, rank: int | None = None) -> Path:
        return self.directory / (name if rank is None else f"{name}.{rank}")

    def _write(self, name: str, data: bytes) -> None:
        self._file(name).write_bytes(data)


def _pickled_exception(error: BaseException) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)  # some can be written and not read
    except Exception:  # whatever pickling a foreign class may raise
        return b""
    return data
