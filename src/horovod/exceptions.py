"""What can go wrong, grouped by what the caller can do about it.

::

    RuntimeError
    ├── HorovodInternalError          a collective failed; restore the state and start the world again
    │   ├── PeerLostError             a rank died or left; the world is gone, shutdown() and init() again
    │   ├── MismatchError             ranks disagree about an operation; fix the script, the world lives on
    │   ├── EngineShutdownError       this rank shut down while the operation was pending
    │   └── NotInitializedError       (also ValueError) call init() first, or this is a forked child
    └── HostsUpdatedInterrupt         the set of hosts changed; not a failure, resynchronise and go on
    ValueError
    └── InitError                     init() could not build the world; the message says whom it waited for
    ImportError
    └── HorovodVersionMismatchError   a framework is installed in a version that cannot work

``HorovodInternalError``, ``HostsUpdatedInterrupt`` and ``HorovodVersionMismatchError`` are the original's
classes; what is new derives from them, so that ``except`` clauses in existing scripts keep working.
Misuse that this process can see alone (a wrong dtype, a duplicate name) raises ``ValueError`` or
``TypeError`` at the call.
"""

from __future__ import annotations

__all__ = [
    "EngineShutdownError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "InitError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
]


class HorovodInternalError(RuntimeError):
    """A collective operation failed on this rank, and on every rank that took part."""


class PeerLostError(HorovodInternalError):
    """A rank died, hung past its limit, or shut down while this rank still needed it."""


class MismatchError(HorovodInternalError):
    """Ranks submitted the same name with different types, shapes or parameters."""


class EngineShutdownError(HorovodInternalError):
    """This rank called ``shutdown()`` while the operation was pending."""


class NotInitializedError(HorovodInternalError, ValueError):
    """A call that needs the runtime came before ``init()``, after ``shutdown()``, or in a forked child."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed; ``skip_sync`` says that the survivors' state is still equal."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class InitError(ValueError):
    """``init()`` could not build the world."""


class HorovodVersionMismatchError(ImportError):
    """An installed framework has a version that this package cannot work with."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(
            f"Framework {name} installed with version {installed_version} but found version {version}."
        )
        self.name = name
        self.version = version
        self.installed_version = installed_version
