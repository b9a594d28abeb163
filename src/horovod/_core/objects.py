"""Python objects between ranks: pickled, over the engine's authenticated connections."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from horovod._core import runtime
from horovod._core.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from horovod import _native

__all__ = ["allgather_object", "broadcast_object"]

_COUNT_BYTES = 8


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's ``obj``, on every rank of the set. The root, a rank of the whole job, gets its own back."""
    engine = runtime.engine()
    number = process_set.process_set_id
    at_root = engine.rank == root_rank
    data = bytearray(_dumps(obj) if at_root else b"")
    length = bytearray(len(data).to_bytes(_COUNT_BYTES, "little"))
    engine.broadcast(_part(name, "sz"), length, length, root_rank, number)
    if not at_root:
        data = bytearray(int.from_bytes(length, "little"))
    engine.broadcast(_part(name, "t"), data, data, root_rank, number)
    return obj if at_root else pickle.loads(data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks of the set, in the order of ranks."""
    engine = runtime.engine()
    number = process_set.process_set_id
    data = _dumps(obj)
    lengths = engine.allgather(_part(name, "sz"), len(data).to_bytes(_COUNT_BYTES, "little"), _raw, number)
    gathered = engine.allgather(_part(name, "t"), data, _raw, number)
    objects, begin = [], 0
    for at in range(0, len(lengths), _COUNT_BYTES):
        end = begin + int.from_bytes(lengths[at : at + _COUNT_BYTES], "little")
        objects.append(pickle.loads(gathered[begin:end]))
        begin = end
    return objects


def _raw(memory: _native.Memory, _shape: tuple[int, ...], _index: int) -> memoryview:
    return memoryview(memory)


def _part(name: str | None, what: str) -> str | None:
    # Not named after the object's type, which may differ: often all but the root have None.
    return None if name is None else f"{name}.{what}"


def _dumps(obj: Any) -> bytes:
    import cloudpickle  # by value what cannot be imported elsewhere; not free to import

    data: bytes = cloudpickle.dumps(obj)
    return data
