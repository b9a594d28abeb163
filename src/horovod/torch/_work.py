"""What an executor works on: orders, the same on all ranks, and this rank's shares of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from horovod.exceptions import HorovodInternalError

Tensor = torch.Tensor

DTYPES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "uint16": torch.uint16,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Order:
    """What is to be done, by whom."""

    kind: str
    ranks: list[int]
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    compression: int = 0
    root: int = 0


@dataclass(eq=False, slots=True, weakref_slot=True)
class Share:
    """One operation of this rank: what it gives and what it gets."""

    inputs: list[Tensor]
    outputs: list[Tensor] = field(default_factory=list)
    """To be filled, of an operation whose results are as large as its inputs; else:"""
    results: list[Tensor] = field(default_factory=list)
    """New tensors."""
    numbers: list[int] = field(default_factory=list)
    """Of an allgather, for each tensor the members' rows; of an alltoall, the rows from each to each."""
    received: list[int] = field(default_factory=list)
    """Of an alltoall: the rows from each member."""
    mark: Any = None
    """See ``Streams.mark``."""
    stands_in: bool = False
    """This rank has joined: the inputs are neutral elements, nobody wants the results."""


def name_of(tensor: Tensor) -> str:
    """The engine's name of the tensor's type; refuses tensors that cannot travel."""
    if tensor.layout != torch.strided:
        raise ValueError(f"The tensor cannot be used: its layout is {tensor.layout}; use tensor.to_dense().")
    if not tensor.is_contiguous():
        raise ValueError("The tensor cannot be used: it is not contiguous; use tensor.contiguous().")
    name = NAMES.get(tensor.dtype)
    if name is None:
        known = ", ".join(NAMES.values())
        raise ValueError(f"The element type {tensor.dtype} is not supported; use one of {known}.")
    return name


def one_device(tensors: Sequence[Tensor]) -> torch.device:
    """The device that all tensors of a group are on."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise HorovodInternalError(
            "The tensors of a group are on several devices "
            f"({', '.join(sorted(map(str, devices)))}): move them to one, or make a group for each device."
        )
    return tensors[0].device
