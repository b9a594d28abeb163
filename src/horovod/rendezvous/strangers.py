"""Who is turned away at a door of the meeting: the first are named in the log, the rest is counted."""

from __future__ import annotations

import logging

_logger = logging.getLogger("horovod")
_NAMED = 3


class Strangers:
    """The record of one door; a flood costs three lines and a sum."""

    def __init__(self, door: str) -> None:
        self._door = door
        self._count = 0

    def turn_away(self, who: str, why: str) -> None:
        """Notes that somebody was refused."""
        self._count += 1
        if self._count <= _NAMED:
            _logger.warning("%s: refused %s: %s", self._door, who, why)

    def sum_up(self) -> None:
        """The door closes: says how many were not named."""
        if self._count > _NAMED:
            _logger.warning("%s: refused %d more", self._door, self._count - _NAMED)
        self._count = 0
