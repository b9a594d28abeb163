"""The native engine. Its only user is horovod._core."""

from collections.abc import Callable
from typing import Any

NONCE_OFFSET: int

def kernel_isa() -> str: ...
def shm_bytes_needed(size: int) -> int: ...
def create_region(bytes: int) -> int: ...

_Peer = tuple[int, str, int, int]
_Errors = tuple[type[BaseException], ...]
_Done = Callable[[BaseException | None], object]

class Engine:
    @staticmethod
    def alone(options: dict[str, int], errors: _Errors) -> Engine: ...
    @staticmethod
    def shm(
        rank: int,
        size: int,
        region_fd: int,
        wake_fd: int,
        eventfds: list[int],
        peers: list[_Peer],
        options: dict[str, int],
        errors: _Errors,
    ) -> Engine: ...
    @staticmethod
    def tcp(
        rank: int,
        size: int,
        wake_fd: int,
        control_fds: list[int],
        data_fds: list[int],
        peers: list[_Peer],
        options: dict[str, int],
        errors: _Errors,
    ) -> Engine: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def plane(self) -> str: ...
    def allreduce(
        self, name: str | None, input: Any, output: Any, op: int, prescale: float, postscale: float
    ) -> None: ...
    def allreduce_async(
        self,
        name: str | None,
        input: Any,
        output: Any,
        op: int,
        prescale: float,
        postscale: float,
        callback: _Done | None = None,
    ) -> int: ...
    def broadcast(self, name: str | None, input: Any, output: Any, root: int) -> None: ...
    def broadcast_async(
        self, name: str | None, input: Any, output: Any, root: int, callback: _Done | None = None
    ) -> int: ...
    def barrier(self) -> None: ...
    def poll(self, handle: int) -> bool: ...
    def synchronize(self, handle: int) -> Any: ...
    def counters(self) -> dict[str, int]: ...
    def events(self) -> list[dict[str, Any]]: ...
    def shutdown(self) -> None: ...
    def abandon_in_child(self) -> None: ...
