"""Kinds of gradients: missing, frozen, tied, strided, sparse, grouped, compressed."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch.compression import Compressor
from tests.support.world import Workers
from tests.torch import training
from tests.torch.marks import on_worlds
from tests.torch.training import CLOSE, assert_same_everywhere, assert_same_model, loss_of, mlp, own, sgd


def _distributed(model: nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **options)


class Branches(nn.Module):
    """Parameters that some ranks, or all, do not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        layers = [nn.Linear(3, 3, dtype=torch.float64) for _ in range(3)]
        self.everywhere, self.only_first, self.nowhere = layers

    def forward(self, data: torch.Tensor, first: bool) -> torch.Tensor:
        result = self.everywhere(data)
        return self.only_first(result) if first else result


@on_worlds(2, 3)
@pytest.mark.parametrize("groups", [None, 2, 1])
def test_gradients_that_never_come_are_zeros(world: Workers, groups: int | None) -> None:
    world.run(_never, groups)


def _never(groups: int | None) -> None:
    model = Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=groups
    )
    for _ in range(3):
        optimizer.zero_grad()
        expected = copy.deepcopy(model)
        data = torch.ones(2, 3, dtype=torch.float64)
        model(data, hvd.rank() == 0).pow(2).sum().backward()
        optimizer.synchronize()
        sum(expected(data, rank == 0).pow(2).sum() for rank in range(hvd.size())).backward()
        for mine, plain in zip(model.parameters(), expected.parameters(), strict=True):
            wanted = torch.zeros_like(plain) if plain.grad is None else plain.grad / hvd.size()
            torch.testing.assert_close(mine.grad, wanted)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_same_everywhere(model.parameters())


@on_worlds(2, 3)
@pytest.mark.parametrize("groups", [None, 1])
def test_frozen_and_thawed(world: Workers, groups: int | None) -> None:
    world.run(_frozen, groups)


def _frozen(groups: int | None) -> None:
    def run(model: nn.Module, optimizer: torch.optim.Optimizer, part: Any) -> nn.Module:
        for trainable in (False, True, False, True):
            model[0].requires_grad_(trainable)
            for param in model.parameters():
                param.grad = None
            training.train(model, optimizer, 2, part)
        return model

    model, alone = mlp(), mlp()
    for one in (model, alone):
        one[0].requires_grad_(False)
    optimizer = _distributed(model, groups=groups)
    run(model, optimizer, own)
    run(alone, sgd(alone), training.whole)
    assert_same_model(model, alone, **CLOSE)


@on_worlds(2, 3)
def test_parameters_added_later(world: Workers) -> None:
    world.run(_added)


def _added() -> None:
    def run(model: nn.Module, optimizer: Any, part: Any) -> nn.Module:
        training.train(model, optimizer, 2, part)
        optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.05})
        for param in model[2].parameters():
            param.grad = None
        return training.train(model, optimizer, 3, part)

    model, alone = mlp(), mlp()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(first, model.named_parameters())
    run(model, optimizer, own)
    run(alone, torch.optim.SGD(alone[0].parameters(), lr=0.1), training.whole)
    assert_same_model(model, alone, **CLOSE)
    assert len(first.param_groups) == len(optimizer.param_groups) == 2


class Tied(nn.Module):
    """The same matrix, used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(6, 6, dtype=torch.float64)
        self.second = nn.Linear(6, 6, dtype=torch.float64)
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(data).tanh()))


@on_worlds(2, 3)
@pytest.mark.parametrize("once", [True, False], ids=["one name", "two names"])
def test_tied_parameters(world: Workers, once: bool) -> None:
    world.run(_tied, once)


def _tied(once: bool) -> None:
    model = Tied()
    names = model.named_parameters(remove_duplicate=once)
    training.train(model, hvd.DistributedOptimizer(sgd(model), names))
    assert_same_model(model, training.trained_alone(sgd, Tied()), **CLOSE)


class Doubling(Compressor):
    """A compression of the user's own, without loss."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return tensor.to(torch.float64) * 2, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return (tensor / 2).to(ctx)


@on_worlds(2, 3)
@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("compression", ["none", "own", "derived"])
def test_gradients_that_are_not_contiguous(world: Workers, groups: int | None, compression: str) -> None:
    world.run(_channels_last, groups, compression)


def _pictures() -> nn.Module:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(80, 4))
    return model.to(torch.float64).to(memory_format=torch.channels_last)


def _channels_last(groups: int | None, compression: str) -> None:
    own_ones = {"own": Doubling, "derived": type("Derived", (Doubling, hvd.Compression.fp16), {})}
    options = {"compression": own_ones[compression]} if compression in own_ones else {}
    model, alone = _pictures(), _pictures()
    optimizer, plain = _distributed(model, groups=groups, **options), sgd(alone)
    random = torch.Generator().manual_seed(9)
    for _ in range(3):
        data = torch.randn(12, 3, 8, 8, generator=random, dtype=torch.float64)
        data = data.to(memory_format=torch.channels_last)
        target = torch.randn(12, 4, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        loss_of(model, own(data), own(target)).backward()
        assert not model[0].weight.grad.is_contiguous()
        optimizer.step()
        plain.zero_grad()
        loss_of(alone, data, target).backward()
        plain.step()
    assert_same_model(model, alone, **CLOSE)


@on_worlds(2, 3)
@pytest.mark.parametrize(
    "options",
    [
        {"groups": 1},
        {"groups": 2},
        {"groups": 100},
        {"gradient_predivide_factor": 2.0},
        {"gradient_predivide_factor": 3.0, "groups": 2},
        {"compression": Doubling},
        {"compression": Doubling, "groups": 2},
    ],
    ids=str,
)
def test_ways_to_reduce(world: Workers, options: dict[str, Any]) -> None:
    world.run(_ways, options)


def _ways(options: dict[str, Any]) -> None:
    model = mlp()
    training.train(model, _distributed(model, **options))
    assert_same_model(model, training.trained_alone(sgd), **CLOSE)


@on_worlds(2, 3)
def test_groups_of_parameters(world: Workers) -> None:
    world.run(_lists)


def _lists() -> None:
    model = mlp()
    first, *_, last = model.parameters()
    optimizer = _distributed(model, groups=[[first, last]])
    training.train(model, optimizer)
    assert_same_model(model, training.trained_alone(sgd), **CLOSE)


@on_worlds(2, 3)
def test_num_groups_is_deprecated(world: Workers) -> None:
    world.run(_num_groups)


def _num_groups() -> None:
    model = mlp()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = _distributed(model, num_groups=2)
    assert [warning.category for warning in seen] == [DeprecationWarning]
    assert "groups" in str(seen[0].message)
    training.train(model, optimizer)
    assert_same_model(model, training.trained_alone(sgd), **CLOSE)


@on_worlds(2, 3)
@pytest.mark.parametrize("groups", [None, 2])
def test_sum(world: Workers, groups: int | None) -> None:
    world.run(_sum, groups)


def _sum(groups: int | None) -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        sgd(model, lr=0.1 / hvd.size()), model.named_parameters(), op=hvd.Sum, groups=groups
    )
    training.train(model, optimizer)
    assert_same_model(model, training.trained_alone(sgd), **CLOSE)


@on_worlds(2, 3)
@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(world: Workers, groups: int | None, compression: str) -> None:
    world.run(_compression, groups, compression)


def _compression(groups: int | None, compression: str) -> None:
    model = mlp()
    optimizer = _distributed(model, groups=groups, compression=getattr(hvd.Compression, compression))
    training.train(model, optimizer)
    expected = training.trained_alone(sgd)
    assert_same_model(model, expected, rtol=0.02, atol=0.02)
    difference = max(
        float((a - b).detach().abs().max())
        for a, b in zip(model.parameters(), expected.parameters(), strict=True)
    )
    assert difference > 1e-6  # it did round
