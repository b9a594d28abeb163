"""Gradients of the native operations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod._core.reduction import Average, Sum
from horovod.tensorflow import _raw

Tensor = Any


def _text(op: Any, name: str) -> float:
    value = op.get_attr(name)
    return float(value.decode() if isinstance(value, bytes) else value)


def _reduction_of(op: Any) -> dict[str, Any]:
    return {
        "op": op.get_attr("reduce_op"),
        "prescale_factor": _text(op, "prescale_factor"),
        "postscale_factor": _text(op, "postscale_factor"),
        "process_set": op.get_attr("process_set_id"),
        "wire": op.get_attr("compression"),
    }


@tf.RegisterGradient("HorovodAllreduce")
def _of_allreduce(op: Any, grad: Tensor) -> Tensor:
    return _raw._allreduce(grad, **_reduction_of(op))


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _of_grouped_allreduce(op: Any, *grads: Tensor) -> list[Tensor]:
    return _raw._grouped_allreduce(list(grads), **_reduction_of(op))


def own_rows(grad: Tensor, tensor: Tensor, process_set: int) -> Tensor:
    """The gradient of an allgather to which this rank gave ``tensor``: its part of the average."""
    averaged = _raw._allreduce(grad, op=Average, process_set=process_set)
    rows = tf.shape(tensor)[:1]
    counts = _raw.allgather(rows, process_set=process_set)
    begin = tf.reduce_sum(counts[: _raw.rank_in_set_op(process_set)])
    return averaged[begin : begin + rows[0]]


@tf.RegisterGradient("HorovodAllgather")
def _of_allgather(op: Any, grad: Tensor) -> Tensor:
    return own_rows(grad, op.inputs[0], op.get_attr("process_set_id"))


@tf.RegisterGradient("HorovodGroupedAllgather")
def _of_grouped_allgather(op: Any, *grads: Tensor) -> list[Tensor]:
    process_set = op.get_attr("process_set_id")
    return [own_rows(grad, tensor, process_set) for grad, tensor in zip(grads, op.inputs, strict=True)]


def only_at(root: int, grad: Tensor, process_set: int) -> Tensor:
    """The gradient of a broadcast: the average, for the root."""
    averaged = _raw._allreduce(grad, op=Average, process_set=process_set)
    return tf.where(tf.equal(_raw.rank_op(), root), averaged, tf.zeros_like(averaged))


@tf.RegisterGradient("HorovodBroadcast")
def _of_broadcast(op: Any, grad: Tensor) -> Tensor:
    return only_at(op.get_attr("root_rank"), grad, op.get_attr("process_set_id"))


def sent_back(grad: Tensor, received: Tensor, tensor: Tensor, process_set: int) -> Tensor:
    """The gradient of an alltoall: what came goes back. Rows that were sent nowhere have none."""
    back, _ = _raw.alltoall(grad, received, process_set=process_set)
    unsent = tf.shape(tensor)[0] - tf.shape(back)[0]
    rest = tf.zeros(tf.concat([[unsent], tf.shape(tensor)[1:]], 0), grad.dtype)
    return tf.concat([back, rest], 0)


@tf.RegisterGradient("HorovodAlltoall")
def _of_alltoall(op: Any, grad: Tensor, _: Tensor) -> list[Tensor | None]:
    return [sent_back(grad, op.outputs[1], op.inputs[0], op.get_attr("process_set_id")), None]


def gathered(grad: Tensor, op: int, scale: float, process_set: int) -> Tensor:
    """The gradient of a reducescatter: that of all rows, times what the result was multiplied by."""
    return multiplied(_raw.allgather(grad, process_set=process_set), op, scale, process_set)


def multiplied(rows: Tensor, op: int, scale: float, process_set: int) -> Tensor:
    """The rows times what a result was multiplied by."""
    if op == Sum:
        rows *= tf.cast(_raw.size_op(process_set), rows.dtype)
    return rows * tf.cast(scale, rows.dtype) if scale != 1.0 else rows


@tf.RegisterGradient("HorovodReducescatter")
def _of_reducescatter(op: Any, grad: Tensor) -> Tensor:
    reduction = _reduction_of(op)
    scale = reduction["prescale_factor"] * reduction["postscale_factor"]
    return gathered(grad, reduction["op"], scale, reduction["process_set"])


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _of_grouped_reducescatter(op: Any, *grads: Tensor) -> list[Tensor]:
    return [_of_reducescatter(op, grad) for grad in grads]


for _operation in (
    "HorovodJoin",
    "HorovodSize",
    "HorovodRank",
    "HorovodLocalSize",
    "HorovodLocalRank",
    "HorovodProcessSetIncluded",
):
    tf.no_gradient(_operation)
