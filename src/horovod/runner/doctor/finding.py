"""What a check of the doctor says."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Finding", "Level"]


class Level(enum.Enum):
    """How bad it is. Only a problem keeps jobs from running."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``advice`` is what the user can do."""

    name: str
    level: Level
    found: str
    advice: str = ""
