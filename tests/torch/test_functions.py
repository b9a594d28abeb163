"""broadcast_parameters and the broadcast of objects: all ranks start from the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers
from tests.torch.marks import on_worlds
from tests.torch.training import assert_same_everywhere, mlp

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "uint16",
    "uint32",
]


class Everything(nn.Module):
    """Parameters and buffers of many kinds; values differ from rank to rank."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
        self.body.to(memory_format=torch.channels_last)
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("flags", torch.rand(5) > 0.5)
        self.register_buffer("spectrum", torch.randn(3, 2, dtype=torch.complex64).t())
        self.register_buffer("nothing", None)
        self.register_buffer("empty", torch.empty(0, 3))
        self.unused = nn.Parameter(torch.randn(()))


def _values(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("form", ["state_dict", "named", "list", "parameters"])
@pytest.mark.parametrize("root", [0, -1], ids=["first", "last"])
def test_broadcast_parameters(world: Workers, form: str, root: int) -> None:
    world.run(_broadcast_parameters, form, root)


def _broadcast_parameters(form: str, root: int) -> None:
    root %= hvd.size()
    model, expected = Everything(hvd.rank()), Everything(root)
    memory = [value.data_ptr() for value in model.state_dict().values()]
    if form == "state_dict":
        hvd.broadcast_parameters(model.state_dict(), root)
    elif form == "named":
        hvd.broadcast_parameters(model.named_parameters(), root_rank=root)
        hvd.broadcast_parameters(list(model.named_buffers()), root_rank=root)
    elif form == "list":
        hvd.broadcast_parameters(list(model.state_dict().values()), root)
    else:
        hvd.broadcast_parameters(model.parameters(), root)
        hvd.broadcast_parameters(model.buffers(), root)
    for mine, wanted in zip(_values(model), _values(expected), strict=True):
        assert torch.equal(mine, wanted)
    assert [value.data_ptr() for value in model.state_dict().values()] == memory  # in place
    assert not model.body[0].weight.is_contiguous()
    assert all(param.requires_grad and param.grad is None for param in model.parameters())


@on_worlds(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(world: Workers, dtype: str) -> None:
    world.run(_types, dtype)


def _types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensors = [torch.full(shape, 1 + hvd.rank(), dtype=kind) for shape in [(), (3,), (2, 3)]]
    hvd.broadcast_parameters(tensors, root_rank=1)
    for tensor in tensors:
        assert tensor.dtype == kind
        assert torch.equal(tensor.to(torch.complex128), torch.full_like(tensor, 2).to(torch.complex128))


@on_worlds(1, 2)
@pytest.mark.parametrize(
    ("params", "part"),
    [
        (5, "int"),
        ("text", "str"),
        (torch.ones(3), "Tensor"),
        ([1, 2], "int"),
        ([("a", 1)], "'a'"),
        ([(torch.ones(1), "a")], "pairs of a name and a tensor"),
        ([("a", torch.ones(1), 3)], "pairs of a name and a tensor"),
        ({"extra": {"x": 1}}, "broadcast_object"),
        ({5: torch.ones(1)}, "pairs of a name and a tensor"),
        (None, "NoneType"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_other_types_are_refused(world: Workers, params: Any, part: str) -> None:
    assert_raised(world.run(lambda: error_of(hvd.broadcast_parameters, params, 0)), "ValueError", part)


@on_worlds(2)
def test_root_out_of_range(world: Workers) -> None:
    outcomes = world.run(lambda: error_of(hvd.broadcast_parameters, mlp().state_dict(), 5))
    assert_raised(outcomes, "ValueError", "root", "5")


def _shape(model: nn.Module) -> Any:
    model[2] = nn.Linear(9, 4, dtype=torch.float64)
    return model.state_dict()


def _dtype(model: nn.Module) -> Any:
    model[2].float()
    return model.state_dict()


def _more(model: nn.Module) -> Any:
    model.append(nn.Linear(4, 4))
    return model.state_dict()


def _order(model: nn.Module) -> Any:
    return list(model.named_parameters())[::-1]


def _names(model: nn.Module) -> Any:
    return [(f"module.{name}", param) for name, param in model.named_parameters()]


DIFFERENCES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "shape": (_shape, ("'2.weight'", "[4, 520]", "[4, 9]")),
    "dtype": (_dtype, ("'2.bias'", "float64", "float32")),
    "more": (_more, ("'3.bias'", "has only 4")),
    "order": (_order, ("'0.weight'", "'2.bias'")),
    "names": (_names, ("'0.weight'", "'module.0.weight'")),
}


@on_worlds(2, 3)
@pytest.mark.parametrize("kind", DIFFERENCES)
@pytest.mark.parametrize("odd", [0, -1], ids=["first", "last"])
def test_models_that_differ(world: Workers, kind: str, odd: int) -> None:
    """Every rank gets the error, which names the first difference; nothing changes, the world lives."""
    change, parts = DIFFERENCES[kind]
    outcomes = world.run(_models_that_differ, change, odd, kind in ("order", "names"))
    others = f"ank {odd % len(outcomes)}"
    assert_raised(outcomes, "HorovodInternalError", "broadcast_parameters()", others, *parts)


def _models_that_differ(change: Any, odd: int, as_list: bool) -> Raised | None:
    model = mlp(seed=hvd.rank())
    params = list(model.named_parameters()) if as_list else model.state_dict()
    if hvd.rank() == odd % hvd.size():
        params = change(model)
    before = [tensor.clone() for tensor in model.state_dict().values()]
    outcome = error_of(hvd.broadcast_parameters, params, 0)
    for tensor, old in zip(model.state_dict().values(), before, strict=True):
        assert torch.equal(tensor, old)
    healthy = mlp(seed=hvd.rank())
    hvd.broadcast_parameters(healthy.state_dict(), 0)
    assert_same_everywhere(healthy.state_dict().values())
    return outcome


@on_worlds(1, 2, 3)
def test_objects(world: Workers) -> None:
    world.run(_objects)


def _objects() -> None:
    thing = {"rank": hvd.rank(), "tensor": torch.full((3,), float(hvd.rank())), "call": lambda: 7}
    last = hvd.size() - 1
    got = hvd.broadcast_object(thing if hvd.rank() == last else None, root_rank=last, name="thing")
    assert got["rank"] == last
    assert torch.equal(got["tensor"], torch.full((3,), float(last)))
    assert got["call"]() == 7
    assert [one["rank"] for one in hvd.allgather_object(thing)] == list(range(hvd.size()))


@on_worlds(3)
def test_objects_in_process_sets(world: Workers) -> None:
    world.run(_objects_in_sets)


def _objects_in_sets() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        assert hvd.broadcast_object(hvd.rank(), root_rank=2, process_set=pair) == 2
    hvd.remove_process_set(pair)
