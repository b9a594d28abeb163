"""The runtime's own messages on standard error, by ``HOROVOD_LOG_LEVEL`` and ``HOROVOD_LOG_HIDE_TIME``."""

from __future__ import annotations

import logging
import sys

from horovod._config import Settings

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}

logger = logging.getLogger("horovod")


def configure(settings: Settings, rank: int) -> None:
    """Sends messages of this level and above to standard error, unless the program handles them itself."""
    logger.setLevel(_LEVELS[settings.log_level])
    if logger.handlers or logging.getLogger().handlers:
        return
    time = "" if settings.log_hide_time else "%(asctime)s "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{time}horovod %(levelname)s [rank {rank}]: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
