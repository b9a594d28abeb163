"""What a call did: for cases that provoke errors and let the test process judge them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Raised(NamedTuple):
    """An exception: the names of its classes and its message."""

    classes: tuple[str, ...]
    message: str


def error_of(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Raised | None:
    """The exception that a call raises; ``None`` if it raises none."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return Raised(tuple(kind.__name__ for kind in type(error).__mro__), str(error))
    return None


def assert_raised(outcomes: Sequence[Raised | None], kind: str, *parts: str) -> None:
    """On every rank a ``kind`` was raised, with all ``parts`` in its message."""
    for rank, outcome in enumerate(outcomes):
        assert outcome is not None, f"nothing was raised on rank {rank}"
        assert kind in outcome.classes, f"rank {rank}: {outcome}"
        for part in parts:
            assert part in outcome.message, f"rank {rank}: {outcome.message!r} lacks {part!r}"
