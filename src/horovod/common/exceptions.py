"""``horovod.common.exceptions``: there for scripts written against the original."""

from __future__ import annotations

from horovod.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
