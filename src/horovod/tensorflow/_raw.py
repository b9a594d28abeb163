"""The operations with plain arguments: what the public functions and the gradients are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import Sum, known
from horovod.tensorflow import _compiled, _xla
from horovod.tensorflow._kernels import ops
from horovod.tensorflow._names import named

Tensor = Any


def _ops() -> Any:
    """The operations for here: those that XLA can compile, where it will."""
    return _compiled if _xla.compiling() else ops


def set_id(process_set: ProcessSet | int) -> int:
    """The number of a process set."""
    number = process_set if isinstance(process_set, int) else process_set.process_set_id
    if number is None:
        raise TypeError(
            "The process set is not registered; use add_process_set() or init(process_sets=[...])"
        )
    return number


def _reduction(op: int, prescale: float, postscale: float, wire: int) -> dict[str, Any]:
    return {
        "reduce_op": known(op),
        "prescale_factor": repr(float(prescale)),
        "postscale_factor": repr(float(postscale)),
        "compression": wire,
    }


def _allreduce(
    tensor: Tensor,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
    wire: int = 0,
) -> Tensor:
    """``tensor`` reduced over all ranks: their sum, if nothing else is said."""
    node, naming = named("HorovodAllreduce", tensor, name, ignore_name_scope)
    reduction = _reduction(op, prescale_factor, postscale_factor, wire)
    return _ops().horovod_allreduce(
        tensor, **reduction, process_set_id=set_id(process_set), name=node, **naming
    )


def _grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
    wire: int = 0,
) -> list[Tensor]:
    """:func:`_allreduce` of several tensors as one operation: all of them, or none."""
    if not len(tensors):
        return []
    node, naming = named("HorovodGroupedAllreduce", tensors, name, ignore_name_scope)
    reduction = _reduction(op, prescale_factor, postscale_factor, wire)
    return list(
        _ops().horovod_grouped_allreduce(
            list(tensors), **reduction, process_set_id=set_id(process_set), name=node, **naming
        )
    )


def allgather(
    tensor: Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> Tensor:
    """The tensors of all ranks, one after the other along the first dimension, which may differ.

    The gradient is the average over the ranks, of which each gets its own rows.
    """
    node, naming = named("HorovodAllgather", tensor, name, ignore_name_scope)
    return _ops().horovod_allgather(tensor, process_set_id=set_id(process_set), name=node, **naming)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> list[Tensor]:
    """:func:`allgather` of several tensors as one operation."""
    if not len(tensors):
        return []
    node, naming = named("HorovodGroupedAllgather", tensors, name, ignore_name_scope)
    return list(
        _ops().horovod_grouped_allgather(
            list(tensors), process_set_id=set_id(process_set), name=node, **naming
        )
    )


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> Tensor:
    """The root's ``tensor``, on every rank; on the others it gives type and shape.

    The root is a rank of the whole job, also in a process set. It alone gets a gradient: the average.
    """
    node, naming = named("HorovodBroadcast", tensor, name, ignore_name_scope)
    return _ops().horovod_broadcast(
        tensor, root_rank=root_rank, process_set_id=set_id(process_set), name=node, **naming
    )


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> Any:
    """Sends rows of ``tensor`` to every rank, and returns those that came, in the order of ranks.

    ``splits`` says how many rows go to each rank; with it, how many came from each is returned as well.
    Without it all get the same number.
    """
    node, naming = named("HorovodAlltoall", tensor, name, ignore_name_scope)
    output, received = _ops().horovod_alltoall(
        tensor,
        _splits(splits),
        has_splits=int(splits is not None),
        process_set_id=set_id(process_set),
        name=node,
        **naming,
    )
    return output if splits is None else (output, received)


def _splits(given: Any) -> Tensor:
    if given is None:
        return tf.constant([], tf.int32)
    if tf.is_tensor(given):
        fits = given.dtype == tf.int32
    else:
        given = np.asarray(given)
        fits = given.dtype.kind in "iu" or given.size == 0  # lists of Python's numbers come as int64
    if not fits:
        kind = given.dtype.name
        raise tf.errors.InvalidArgumentError(None, None, f"The splits of an alltoall are int32, not {kind}.")
    return tf.convert_to_tensor(given, tf.int32)


def _reducescatter(
    tensor: Tensor,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    wire: int = 0,
) -> Tensor:
    """This rank's rows of the reduced ``tensor``: of the sum, if nothing else is said."""
    node, naming = named("HorovodReducescatter", tensor, name, ignore_name_scope)
    reduction = _reduction(op, prescale_factor, postscale_factor, wire)
    return _ops().horovod_reducescatter(
        tensor, **reduction, process_set_id=set_id(process_set), name=node, **naming
    )


def _grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    wire: int = 0,
) -> list[Tensor]:
    """:func:`_reducescatter` of several tensors as one operation."""
    if not len(tensors):
        return []
    node, naming = named("HorovodGroupedReducescatter", tensors, name, ignore_name_scope)
    reduction = _reduction(op, prescale_factor, postscale_factor, wire)
    return list(
        _ops().horovod_grouped_reducescatter(
            list(tensors), **reduction, process_set_id=set_id(process_set), name=node, **naming
        )
    )


def join() -> Tensor:
    """This rank has no more data: it takes part in the others' allreduces until they have joined too.

    The rank that joined last, the same everywhere.
    """
    return _ops().horovod_join(waits=int(tf.executing_eagerly()))


def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """How many ranks there are, when the graph runs."""
    return _ops().horovod_size(process_set_id=process_set_id, name=name)


def rank_op(name: str | None = None) -> Tensor:
    """This process's number among all, when the graph runs."""
    return _ops().horovod_rank(name=name)


def rank_in_set_op(process_set_id: int, name: str | None = None) -> Tensor:
    """This process's number among those of a process set, when the graph runs."""
    return _ops().horovod_rank(process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> Tensor:
    """How many ranks this host has, when the graph runs."""
    return _ops().horovod_local_size(name=name)


def local_rank_op(name: str | None = None) -> Tensor:
    """This process's number among those on its host, when the graph runs."""
    return _ops().horovod_local_rank(name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """1 if this process is in the set, else 0; -1 before ``init()``, -3 if there is no such set."""
    return _ops().horovod_process_set_included(process_set_id=process_set_id, name=name)
