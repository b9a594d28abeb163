"""A rank's story: one line of JSON for every event, written at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Story:
    """The file of one rank; a forked child must not write to it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, event: str, **facts: Any) -> None:
        """Adds an event."""
        line = json.dumps({"event": event, **facts}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def read(path: Path) -> list[Event]:
    """The events; none if the rank has not come that far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
