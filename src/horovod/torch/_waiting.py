"""Operations that wait and return new tensors, on plain arguments: what autograd and ``torch.compile`` call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovod._core.runtime import engine
from horovod.torch._outputs import Wrap, empty_like
from horovod.torch._routes import engine_for, engine_for_group

Tensor = torch.Tensor


def allreduce(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, wire: int, process_set: int
) -> Tensor:
    """The reduced tensor."""
    output = empty_like(tensor)
    engine_for(tensor).allreduce(name, tensor, output, op, prescale, postscale, wire, process_set)
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
    inputs, outputs = list(tensors), [empty_like(tensor) for tensor in tensors]
    engine_for_group(inputs).grouped_allreduce(
        name, inputs, outputs, op, prescale, postscale, wire, process_set
    )
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
    output = empty_like(tensor)
    engine_for(tensor).broadcast(name, tensor, output, root, process_set)
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


def place_in(process_set: int) -> int:
    """This rank's number among the members of the set."""
    running = engine()
    return running.process_sets()[process_set].index(running.rank)


def size_of(process_set: int) -> int:
    """How many ranks are in the set."""
    return len(engine().process_sets()[process_set])
