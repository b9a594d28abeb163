"""Operations that wait and return new tensors, on plain arguments: for autograd and ``torch.compile``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovod._core import runtime
from horovod.torch._checked import engine_for, engine_for_group
from horovod.torch._outputs import Wrap, empty_like

Tensor = torch.Tensor


def allreduce(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, wire: int, process_set: int
) -> Tensor:
    """The reduced tensor."""
    engine = engine_for(tensor)
    output = empty_like(tensor)
    engine.allreduce(name, tensor, output, op, prescale, postscale, wire, process_set)
    return output


def grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    wire: int,
    process_set: int,
) -> list[Tensor]:
    """The reduced tensors."""
    inputs = list(tensors)
    engine = engine_for_group(inputs)
    outputs = [empty_like(tensor) for tensor in inputs]
    engine.grouped_allreduce(name, inputs, outputs, op, prescale, postscale, wire, process_set)
    return outputs


def allgather(tensor: Tensor, name: str | None, process_set: int) -> Tensor:
    """The tensors of all ranks, one after the other."""
    gathered: Tensor = engine_for(tensor).allgather(name, tensor, Wrap([tensor]), process_set)
    return gathered


def grouped_allgather(tensors: Sequence[Tensor], name: str | None, process_set: int) -> list[Tensor]:
    """For each tensor, those of all ranks."""
    inputs = list(tensors)
    gathered: list[Tensor] = engine_for_group(inputs).grouped_allgather(
        name, inputs, Wrap(inputs), process_set
    )
    return gathered


def broadcast(tensor: Tensor, root: int, name: str | None, process_set: int) -> Tensor:
    """The root's tensor."""
    engine = engine_for(tensor)
    output = empty_like(tensor)
    engine.broadcast(name, tensor, output, root, process_set)
    return output


def alltoall(
    tensor: Tensor, splits: Sequence[int] | None, name: str | None, process_set: int
) -> tuple[Tensor, Tensor]:
    """The rows that came for this rank, and how many from whom."""
    rows = None if splits is None else list(splits)
    output, received = engine_for(tensor).alltoall(name, tensor, rows, Wrap([tensor]), process_set)
    return output, torch.tensor(received, dtype=torch.int32)


def reducescatter(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, wire: int, process_set: int
) -> Tensor:
    """This rank's rows of the reduced tensor."""
    rows: Tensor = engine_for(tensor).reducescatter(
        name, tensor, Wrap([tensor]), op, prescale, postscale, wire, process_set
    )
    return rows


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    wire: int,
    process_set: int,
) -> list[Tensor]:
    """This rank's rows of the reduced tensors."""
    inputs = list(tensors)
    rows: list[Tensor] = engine_for_group(inputs).grouped_reducescatter(
        name, inputs, Wrap(inputs), op, prescale, postscale, wire, process_set
    )
    return rows


def own_rows(tensor: Tensor, rows: int, process_set: int) -> Tensor:
    """The gradient of an allgather to which this rank gave ``rows``: its part of the averaged ``tensor``."""
    counts = allgather(torch.tensor([rows]), None, process_set).tolist()
    averaged = allreduce(tensor, None, 0, 1.0, 1.0, 0, process_set)
    return averaged.narrow(0, sum(counts[: place_in(process_set)]), rows).clone()


def lengthened(tensor: Tensor, rows: int) -> Tensor:
    """With rows of zeros at the end: the gradient of those that an alltoall sent nowhere."""
    unsent = rows - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros((unsent, *tensor.shape[1:]))]) if unsent else tensor


def place_in(process_set: int) -> int:
    """This rank's number among the members of the set."""
    running = runtime.engine()
    return running.process_sets()[process_set].index(running.rank)


def size_of(process_set: int) -> int:
    """How many ranks are in the set."""
    return len(runtime.engine().process_sets()[process_set])
