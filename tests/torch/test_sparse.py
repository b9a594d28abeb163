"""Sparse gradients, of embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from tests.support.world import Workers
from tests.torch.marks import on_worlds
from tests.torch.training import CLOSE, assert_same_everywhere, assert_same_model, own


class Words(nn.Module):
    """An embedding with sparse gradients, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(10, 4, sparse=True, dtype=torch.float64)
        self.layer = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(words))


@on_worlds(2, 3)
@pytest.mark.parametrize(
    "options",
    [{}, {"sparse_as_dense": True}, {"sparse_as_dense": True, "groups": 1}, {"op": hvd.Sum}],
    ids=str,
)
def test_sparse_gradients(world: Workers, options: dict[str, Any]) -> None:
    world.run(_sparse, options)


def _sparse(options: dict[str, Any]) -> None:
    model, alone = Words(), Words()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
    )
    rate = 0.1 * hvd.size() if options.get("op") == hvd.Sum else 0.1
    plain = torch.optim.SGD(alone.parameters(), lr=rate)
    for step in range(4):
        words = torch.randint(0, 10, (12, 3), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(own(words)).pow(2).mean().backward()
        optimizer.step()
        assert model.table.weight.grad.is_sparse
        plain.zero_grad()
        alone(words).pow(2).mean().backward()
        plain.step()
    assert_same_model(model, alone, **CLOSE)


@on_worlds(2, 3)
@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("before", [0, 1], ids=["never came", "came once"])
def test_sparse_gradients_that_do_not_come(world: Workers, sparse_as_dense: bool, before: int) -> None:
    world.run(_sparse_missing, sparse_as_dense, before)


def _sparse_missing(sparse_as_dense: bool, before: int) -> None:
    model = Words()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), sparse_as_dense=sparse_as_dense
    )
    words = torch.arange(6)
    for step in range(3):
        optimizer.zero_grad()
        if step < before or hvd.rank() == 0:
            model(words).sum().backward()
        else:
            model.layer(torch.ones(6, 4, dtype=torch.float64)).sum().backward()
        optimizer.step()
    assert_same_everywhere(model.parameters())


@on_worlds(2)
@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients_in_a_group(world: Workers, sparse_as_dense: bool) -> None:
    """They are gathered beside it, or made dense."""
    world.run(_sparse_group, sparse_as_dense)


def _sparse_group(sparse_as_dense: bool) -> None:
    model, alone = Words(), Words()
    alone.load_state_dict(model.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        groups=1,
        sparse_as_dense=sparse_as_dense,
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        model(torch.arange(6)).sum().backward()
        alone(torch.arange(6)).sum().backward()
        optimizer.step()
        plain.step()
    assert_same_model(model, alone, **CLOSE)
