"""The operations in what XLA compiles: ``jit_compile=True``.

Signatures, names and results are those of the native operations. A program needs the shape of every result
when it is traced: what cannot have one is an error that names ``jit_compile=False``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from horovod._core import runtime
from horovod._core.reduction import Average
from horovod.tensorflow._names import named
from horovod.tensorflow._xla import XlaCall, differentiable, refuse

Tensor = Any


def horovod_allreduce(tensor: Tensor, **options: Any) -> Tensor:
    """One tensor, reduced."""
    return horovod_grouped_allreduce([tensor], grouped=False, **options)[0]


def horovod_grouped_allreduce(
    tensors: Sequence[Tensor], *, grouped: bool = True, name: str | None = None, **options: Any
) -> list[Tensor]:
    """Some tensors, reduced."""
    from horovod.tensorflow import _raw

    attributes = _reduction(options)
    operation = XlaCall("grouped_allreduce" if grouped else "allreduce", attributes, name)
    again = _options_again(options)

    def run(*given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        def gradient(*grads: Tensor) -> list[Tensor]:
            if grouped:
                return _raw._grouped_allreduce(list(grads), **again)
            return [_raw._allreduce(grads[0], **again)]

        return operation.on(given, [one.shape for one in given], in_place=True), gradient

    return differentiable(run, tensors)


def horovod_allgather(tensor: Tensor, **options: Any) -> Tensor:
    """The tensors of all ranks, which have as many rows."""
    return horovod_grouped_allgather([tensor], grouped=False, **options)[0]


def horovod_grouped_allgather(
    tensors: Sequence[Tensor],
    *,
    process_set_id: int,
    tensor_name: str,
    grouped: bool = True,
    rows: int | None = None,
    name: str | None = None,
    **_: Any,
) -> list[Tensor]:
    """For each tensor, those of all ranks. ``rows`` of the result, if they are known to the caller."""
    from horovod.tensorflow import _raw

    attributes = {"name": tensor_name, "process_set": process_set_id}
    operation = XlaCall("grouped_allgather" if grouped else "allgather", attributes, name)

    def run(*given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        def gradient(*grads: Tensor) -> list[Tensor]:
            return [_raw._reducescatter(grad, op=Average, process_set=process_set_id) for grad in grads]

        size = len(operation.ranks(process_set_id))
        shapes = [operation.with_rows(one, lambda own: own * size if rows is None else rows) for one in given]
        return operation.on(given, shapes), gradient

    return differentiable(run, tensors)


def horovod_broadcast(
    tensor: Tensor,
    *,
    root_rank: int,
    process_set_id: int,
    tensor_name: str,
    name: str | None = None,
    **_: Any,
) -> Tensor:
    """The root's tensor."""
    from horovod.tensorflow._op_gradients import only_at

    attributes = {"name": tensor_name, "process_set": process_set_id, "root": root_rank}
    operation = XlaCall("broadcast", attributes, name)

    def run(given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        return operation.on([given], [given.shape], in_place=True), lambda grad: [
            only_at(root_rank, grad, process_set_id)
        ]

    return differentiable(run, [tensor])[0]


def horovod_alltoall(
    tensor: Tensor,
    splits: Tensor,  # noqa: ARG001
    *,
    has_splits: int,
    process_set_id: int,
    tensor_name: str,
    name: str | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The rows that came: as many from everybody."""
    from horovod.tensorflow import _raw

    operation = XlaCall("alltoall", {"name": tensor_name, "process_set": process_set_id}, name)
    if has_splits:
        operation.refuse("with splits, the number of rows that come is not known before")

    def run(given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        def gradient(grad: Tensor) -> list[Tensor]:
            return [_raw.alltoall(grad, process_set=process_set_id)]

        return operation.on([given], [given.shape]), gradient

    return differentiable(run, [tensor])[0], None


def horovod_reducescatter(tensor: Tensor, **options: Any) -> Tensor:
    """This rank's rows of the reduced tensor."""
    return horovod_grouped_reducescatter([tensor], grouped=False, **options)[0]


def horovod_grouped_reducescatter(
    tensors: Sequence[Tensor], *, grouped: bool = True, name: str | None = None, **options: Any
) -> list[Tensor]:
    """This rank's rows of the reduced tensors."""
    from horovod.tensorflow._op_gradients import multiplied

    attributes = _reduction(options)
    operation = XlaCall("grouped_reducescatter" if grouped else "reducescatter", attributes, name)
    process_set = options["process_set_id"]
    scale = attributes["prescale"] * attributes["postscale"]

    def run(*given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        def gradient(*grads: Tensor) -> list[Tensor]:
            back = [
                _gathered(grad, one.shape[0], process_set) for grad, one in zip(grads, given, strict=True)
            ]
            return [multiplied(rows, options["reduce_op"], scale, process_set) for rows in back]

        ranks = operation.ranks(process_set)
        place = ranks.index(runtime.engine().rank)
        shapes = [operation.with_rows(one, lambda rows: _share(rows, place, len(ranks))) for one in given]
        return operation.on(given, shapes), gradient

    return differentiable(run, tensors)


def horovod_join(**_: Any) -> NoReturn:
    """Not a part of a program that all ranks run."""
    refuse("HorovodJoin", "a rank that has joined runs no program")


def horovod_size(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """How many ranks are in a set."""
    return XlaCall("size", {"process_set": process_set_id}, name).number()


def horovod_rank(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """This rank's number in a set."""
    return XlaCall("rank", {"process_set": process_set_id}, name).number()


def horovod_local_size(name: str | None = None) -> Tensor:
    """How many ranks this host has."""
    return XlaCall("local_size", {}, name).number()


def horovod_local_rank(name: str | None = None) -> Tensor:
    """This rank's number on its host."""
    return XlaCall("local_rank", {}, name).number()


def horovod_process_set_included(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Whether this rank is in a set, or why that is not known."""
    return XlaCall("included", {"process_set": process_set_id}, name).number()


def _reduction(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": options["tensor_name"],
        "process_set": options["process_set_id"],
        "reduce_op": options["reduce_op"],
        "prescale": float(options["prescale_factor"]),
        "postscale": float(options["postscale_factor"]),
        "compression": options["compression"],
    }


def _options_again(options: dict[str, Any]) -> dict[str, Any]:
    """For the reduction of a gradient."""
    return {
        "op": options["reduce_op"],
        "prescale_factor": float(options["prescale_factor"]),
        "postscale_factor": float(options["postscale_factor"]),
        "process_set": options["process_set_id"],
        "wire": options["compression"],
    }


def _gathered(tensor: Tensor, rows: int, process_set: int) -> Tensor:
    """What ranks have of so many rows, put together."""
    node, naming = named("HorovodAllgather", tensor, None)
    return horovod_allgather(tensor, rows=rows, process_set_id=process_set, name=node, **naming)


def _share(rows: int, place: int, size: int) -> int:
    return rows // size + (place < rows % size)
