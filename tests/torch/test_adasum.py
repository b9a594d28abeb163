"""Training with Adasum: the ranks' steps are combined, not their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers
from tests.torch import training
from tests.torch.marks import on_worlds
from tests.torch.training import assert_close, assert_same_everywhere, batch, loss_of, mlp, own, sgd

Tensor = torch.Tensor


def _pair(a: Tensor, b: Tensor) -> Tensor:
    """Adasum of two vectors: what they have in common counts once."""
    dot, a_squared, b_squared = (a * b).sum(), (a * a).sum(), (b * b).sum()
    a_factor = 1 - dot / (2 * a_squared) if a_squared else 1.0
    b_factor = 1 - dot / (2 * b_squared) if b_squared else 1.0
    return a_factor * a + b_factor * b


def _adasum(vectors: list[Tensor]) -> Tensor:
    """Of neighbours, then of their results."""
    while len(vectors) > 1:
        vectors = [_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def _expected_step(models: list[nn.Module], optimizers: list[Any], step: int) -> None:
    """Every rank's step, made here; then all models go to the common start plus the combined change."""
    start = [param.detach().clone() for param in models[0].parameters()]
    for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        share = training.ROWS // len(models)
        rows = slice(rank * share, (rank + 1) * share)
        optimizer.zero_grad()
        loss_of(model, *(tensor[rows] for tensor in batch(step))).backward()
        optimizer.step()
    with torch.no_grad():
        for index, before in enumerate(start):
            params = [list(model.parameters())[index] for model in models]
            combined = before + _adasum([param - before for param in params])
            for param in params:
                param.copy_(combined)


MAKERS: dict[str, Any] = {
    "SGD": sgd,
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
}


@on_worlds(1, 2, 4)
@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_combined(world: Workers, name: str) -> None:
    world.run(_steps, name)


def _steps(name: str) -> None:
    make = MAKERS[name]
    model, models = mlp(), [mlp() for _ in range(hvd.size())]
    optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters(), op=hvd.Adasum)
    optimizers = [make(one) for one in models]
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, *(own(tensor) for tensor in batch(step))).backward()
        optimizer.step()
        _expected_step(models, optimizers, step)
        assert_close(model.parameters(), models[0].parameters(), rtol=1e-9, atol=1e-12)
    assert_same_everywhere(model.parameters())


@on_worlds(2, 4)
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(world: Workers, compression: str) -> None:
    world.run(_compressed, compression)


def _compressed(compression: str) -> None:
    model, models = mlp(), [mlp() for _ in range(hvd.size())]
    optimizer = hvd.DistributedOptimizer(
        sgd(model), op=hvd.Adasum, compression=getattr(hvd.Compression, compression)
    )
    training.train(model, optimizer, 1)
    _expected_step(models, [sgd(one) for one in models], 0)
    assert_close(model.parameters(), models[0].parameters(), rtol=0.02, atol=0.02)
    assert_same_everywhere(model.parameters())


@on_worlds(2)
def test_closures_accumulation_and_frozen_parameters(world: Workers) -> None:
    world.run(_uses)


def _uses() -> None:
    model = mlp()
    model[0].bias.requires_grad_(False)
    frozen = model[0].bias.clone()
    optimizer = hvd.DistributedOptimizer(
        sgd(model, lr=0.001), model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=2
    )
    data, target = (own(tensor) for tensor in batch(0))

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            loss = loss_of(model, data, target)
            loss.backward()
        return loss

    first = optimizer.step(closure).item()
    optimizer.synchronize()  # does nothing
    for _ in range(5):
        last = optimizer.step(closure).item()
    assert last < first
    assert torch.equal(model[0].bias, frozen)
    assert_same_everywhere(model.parameters())


@on_worlds(2)
def test_skip_synchronize_is_refused(world: Workers) -> None:
    assert_raised(world.run(_skip), "AssertionError", "skip_synchronize", "Adasum")


def _skip() -> Raised | None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(sgd(model), op=hvd.Adasum)

    def skip() -> None:
        with optimizer.skip_synchronize():
            pass

    return error_of(skip)


@on_worlds(3)
def test_number_of_ranks(world: Workers) -> None:
    outcomes = world.run(lambda: error_of(hvd.DistributedOptimizer, sgd(mlp()), op=hvd.Adasum))
    assert_raised(outcomes, "NotImplementedError", "1, 2, 4, 8", "3")


@on_worlds(3)
def test_process_sets_are_refused(world: Workers) -> None:
    assert_raised(world.run(_in_a_set), "NotImplementedError", "process set")


def _in_a_set() -> Raised | None:
    pair = hvd.add_process_set([0, 1])
    outcome = error_of(hvd.DistributedOptimizer, sgd(mlp()), op=hvd.Adasum, process_set=pair)
    hvd.remove_process_set(pair)
    return outcome
