"""Bringing all ranks to the same state: parameters, optimizer state, any object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import torch

from horovod._core.agreement import agree
from horovod._core.objects import allgather_object, broadcast_object
from horovod._core.runtime import engine
from horovod.torch._asynchronous import broadcast_async_
from horovod.torch._handles import synchronize

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


_KNOWN = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
"""The types that the engine has names for. Of all others only the bytes matter here."""


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[torch.Tensor | tuple[str, torch.Tensor]], root_rank: int
) -> None:
    """Gives every rank the root's values, in place.

    ``params`` is ``model.state_dict()``, ``model.named_parameters()``, or a list of tensors. If the ranks
    differ in names, shapes or types, all of them get an error that says where.
    """
    named = _named(params)
    agree([(name, _kind(tensor)) for name, tensor in named], "broadcast_parameters()")
    _broadcast_all([(f"broadcast_parameters.{name}", tensor) for name, tensor in named], root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,  # noqa: ARG001
) -> None:
    """Gives every rank the root's optimizer state and options; tensors that fit are filled in place.

    The optimizer is not stepped: what the root does not have yet, nobody gets. ``model`` is not needed any
    more.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("The state of torch.optim.LBFGS cannot be broadcast: it differs from rank to rank.")
    params = [param for group in optimizer.param_groups for param in group["params"]]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    agree([("parameters per group", tuple(sizes))], "broadcast_optimizer_state()")
    at_root = engine().rank == root_rank
    options, outlines = broadcast_object(
        (_options_of(optimizer), _outlines_of(optimizer, params)) if at_root else None,
        root_rank,
        name="broadcast_optimizer_state",
    )
    if not at_root:
        for group, values in zip(optimizer.param_groups, options, strict=True):
            _take_options(group, values)
        for index, param in enumerate(params):
            _take_outline(optimizer.state, param, outlines.get(index))
    tensors = [
        (f"broadcast_optimizer_state.{index}.{key}", optimizer.state[params[index]][key])
        for index, outline in outlines.items()
        for key, value in outline.items()
        if isinstance(value, _Outline)
    ]
    _broadcast_all(tensors, root_rank)


class _Outline:
    """A tensor without its values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.on_cpu = tensor.device.type == "cpu"

    def fitting(self, other: Any, param: torch.Tensor) -> torch.Tensor:
        """``other`` if it can be filled, else a new tensor for the state of ``param``."""
        device = torch.device("cpu") if self.on_cpu else param.device
        if isinstance(other, torch.Tensor) and (tuple(other.shape), other.dtype, other.device) == (
            self.shape,
            self.dtype,
            device,
        ):
            return other
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


def _options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]


def _outlines_of(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> dict[int, dict[str, Any]]:
    """What the state looks like, by the number of the parameter; plain values as they are."""
    return {
        index: {
            key: _Outline(value) if isinstance(value, torch.Tensor) else value
            for key, value in optimizer.state[param].items()
        }
        for index, param in enumerate(params)
        if optimizer.state.get(param)
    }


def _take_outline(
    states: MutableMapping[torch.Tensor, Any], param: torch.Tensor, outline: dict[str, Any] | None
) -> None:
    """Brings a parameter's state into the form of the root's; tensors that fit stay, to be filled."""
    if outline is None:
        states.pop(param, None)
        return
    before = states.get(param, {})
    states[param] = {
        key: value if not isinstance(value, _Outline) else value.fitting(before.get(key), param)
        for key, value in outline.items()
    }


def _take_options(group: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        own = group.get(key)
        if isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor) and own.shape == value.shape:
            own.copy_(value)  # a tensor as learning rate may be known elsewhere
        else:
            group[key] = value


def _named(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str):
        pairs = [
            item if isinstance(item, tuple) else (str(number), item) for number, item in enumerate(params)
        ]
    else:
        raise ValueError(
            "broadcast_parameters() takes model.state_dict(), model.named_parameters() or a list of tensors, "
            f"not {type(params).__name__}."
        )
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError("broadcast_parameters() takes tensors, or pairs of a name and a tensor.")
        if not isinstance(pair[1], torch.Tensor) and pair[1] is not None:
            # What modules put into a state_dict by get_extra_state(): there is nothing to fill in place.
            raise ValueError(
                f"broadcast_parameters() cannot fill {pair[0]!r} in place: it is a {type(pair[1]).__name__}, "
                "no tensor. Use broadcast_object() for it."
            )
    return [(name, tensor) for name, tensor in pairs if tensor is not None]


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _broadcast_all(named: list[tuple[str, torch.Tensor]], root_rank: int) -> None:
    """All at once. Tensors that the engine cannot take as they are go as contiguous copies, or as bytes."""
    started = []
    with torch.no_grad():
        for name, tensor in named:
            whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
            plain = whole if whole.dtype in _KNOWN else whole.view(-1).view(torch.uint8)
            started.append((tensor, whole, broadcast_async_(plain, root_rank, name)))
        for tensor, whole, handle in started:
            synchronize(handle)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)
