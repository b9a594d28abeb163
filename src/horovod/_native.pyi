"""The native engine. Its only user is horovod._core."""

from collections.abc import Callable
from typing import Any

NONCE_OFFSET: int

def kernel_isa() -> str: ...
def shm_bytes_needed(size: int) -> int: ...
def create_region(bytes: int) -> int: ...
def in_callback() -> bool: ...
def set_current_world(engine: Engine, local_rank: int, local_size: int) -> None: ...
def clear_current_world() -> None: ...
def add_to_tensorflow() -> str: ...
def add_to_xla_of_tensorflow() -> str: ...

_Peer = tuple[int, str, int, int]
_Mpi = tuple[str, int, int, int, int]
_Errors = tuple[Callable[[str, int], BaseException], ...]
_Observer = tuple[Callable[[], str], Callable[[str], object]]
_Done = Callable[[BaseException | None], object]
_Wrap = Callable[[Memory, tuple[int, ...], int], Any]

class Memory:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class HandedWork:
    @property
    def number(self) -> int: ...
    @property
    def plan(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def gpu(self) -> bool: ...
    @property
    def op(self) -> int: ...
    @property
    def prescale(self) -> float: ...
    @property
    def postscale(self) -> float: ...
    @property
    def compression(self) -> int: ...
    @property
    def root(self) -> int: ...
    @property
    def process_set(self) -> int: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def operations(self) -> list[tuple[int | None, list[tuple[str, list[int]]], list[int]]]: ...

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
        observer: _Observer,
        mpi: _Mpi | None = None,
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
        observer: _Observer,
        mpi: _Mpi | None = None,
    ) -> Engine: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def plane(self) -> str: ...
    def allreduce(
        self,
        name: str | None,
        input: Any,
        output: Any,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
    ) -> Any: ...
    def allreduce_async(
        self,
        name: str | None,
        input: Any,
        output: Any,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
        callback: _Done | None = None,
    ) -> int: ...
    def grouped_allreduce(
        self,
        name: str | None,
        inputs: list[Any],
        outputs: list[Any],
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
    ) -> Any: ...
    def grouped_allreduce_async(
        self,
        name: str | None,
        inputs: list[Any],
        outputs: list[Any],
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
        callback: _Done | None = None,
    ) -> int: ...
    def allgather(self, name: str | None, input: Any, wrap: _Wrap, process_set: int | None = 0) -> Any: ...
    def allgather_async(
        self,
        name: str | None,
        input: Any,
        wrap: _Wrap,
        process_set: int | None = 0,
        callback: _Done | None = None,
    ) -> int: ...
    def grouped_allgather(
        self, name: str | None, inputs: list[Any], wrap: _Wrap, process_set: int | None = 0
    ) -> Any: ...
    def grouped_allgather_async(
        self,
        name: str | None,
        inputs: list[Any],
        wrap: _Wrap,
        process_set: int | None = 0,
        callback: _Done | None = None,
    ) -> int: ...
    def broadcast(
        self, name: str | None, input: Any, output: Any, root: int, process_set: int | None = 0
    ) -> Any: ...
    def broadcast_async(
        self,
        name: str | None,
        input: Any,
        output: Any,
        root: int,
        process_set: int | None = 0,
        callback: _Done | None = None,
    ) -> int: ...
    def alltoall(
        self, name: str | None, input: Any, splits: list[int] | None, wrap: _Wrap, process_set: int | None = 0
    ) -> tuple[Any, list[int]]: ...
    def alltoall_async(
        self,
        name: str | None,
        input: Any,
        splits: list[int] | None,
        wrap: _Wrap,
        process_set: int | None = 0,
        callback: _Done | None = None,
    ) -> int: ...
    def reducescatter(
        self,
        name: str | None,
        input: Any,
        wrap: _Wrap,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
    ) -> Any: ...
    def reducescatter_async(
        self,
        name: str | None,
        input: Any,
        wrap: _Wrap,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
        callback: _Done | None = None,
    ) -> int: ...
    def grouped_reducescatter(
        self,
        name: str | None,
        inputs: list[Any],
        wrap: _Wrap,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
    ) -> Any: ...
    def grouped_reducescatter_async(
        self,
        name: str | None,
        inputs: list[Any],
        wrap: _Wrap,
        op: int,
        prescale: float,
        postscale: float,
        compression: int = 0,
        process_set: int | None = 0,
        callback: _Done | None = None,
    ) -> int: ...
    def submit_handed(
        self,
        kind: str,
        name: str | None,
        tensors: list[tuple[str, tuple[int, ...]]],
        grouped: bool,
        gpu: bool,
        token: int,
        result: Callable[[], Any],
        op: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        compression: int = 0,
        root: int = 0,
        splits: list[int] | None = None,
        process_set: int | None = 0,
    ) -> int: ...
    def open_handing(self) -> None: ...
    def next_handed(self, timeout: float) -> HandedWork | None: ...
    def finish_handed(self, work: int, error: str = "") -> None: ...
    def handing_closed(self, timeout: float = 0.0) -> bool: ...
    def barrier(self, process_set: int | None = 0) -> None: ...
    def join(self) -> int: ...
    def add_process_sets(self, sets: list[list[int]]) -> list[int]: ...
    def remove_process_set(self, process_set: int) -> None: ...
    def process_sets(self) -> dict[int, list[int]]: ...
    def poll(self, handle: int) -> bool: ...
    def synchronize(self, handle: int) -> Any: ...
    def memory(self, bytes: int) -> Memory: ...
    def start_timeline(self, path: str, mark_cycles: bool) -> None: ...
    def stop_timeline(self) -> bool: ...
    def counters(self) -> dict[str, int]: ...
    def events(self) -> list[dict[str, Any]]: ...
    def shutdown(self, last_words: str = "") -> None: ...
    def abandon_in_child(self) -> None: ...
