"""What ``DistributedOptimizer`` adds to an optimizer: when and how gradients are reduced."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import horovod.torch as hvd
from tests.support.outcomes import assert_raised, error_of
from tests.support.world import Workers
from tests.torch import training
from tests.torch.marks import on_worlds
from tests.torch.training import (
    CLOSE,
    assert_close,
    assert_same_everywhere,
    assert_same_model,
    batch,
    loss_of,
    mlp,
    own,
    sgd,
)


def _distributed(model: nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **options)


def _backward(model: nn.Module, step: int = 0) -> None:
    loss_of(model, *(own(tensor) for tensor in batch(step))).backward()


@on_worlds(1, 2, 3)
def test_closures(world: Workers) -> None:
    world.run(_closures)


def _closures() -> None:
    model = mlp()
    optimizer = _distributed(model)
    for step in range(4):
        data = [own(tensor) for tensor in batch(step)]
        loss = optimizer.step(_closure(model, optimizer, data))
        assert loss.item() > 0
    assert_same_model(model, training.trained_alone(sgd), **CLOSE)


def _closure(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> Any:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *data)
        loss.backward()
        return loss

    return closure


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("passes", [2, 3])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "set later"])
def test_accumulation(world: Workers, passes: int, late: bool) -> None:
    """Gradients of several passes add up, as in plain torch; they are reduced in the last."""
    world.run(_accumulation, passes, late)


def _accumulation(passes: int, late: bool) -> None:
    model, alone = mlp(), mlp()
    optimizer, plain = _distributed(model, backward_passes_per_step=1 if late else passes), sgd(alone)
    if late:
        training.train(model, optimizer, 1)
        training.train(alone, plain, 1, training.whole)
        optimizer.set_backward_passes_per_step(passes)
    for step in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        for number in range(passes):
            data, target = batch(step * passes + number)
            loss_of(model, own(data), own(target)).backward()
            loss_of(alone, data, target).backward()
        optimizer.step()
        plain.step()
    assert_same_model(model, alone, **CLOSE)


@on_worlds(2)
@pytest.mark.parametrize("passes", [1, 2])
def test_too_many_backwards(world: Workers, passes: int) -> None:
    world.run(_too_many_backwards, passes)


def _too_many_backwards(passes: int) -> None:
    model = mlp()
    optimizer = _distributed(model, backward_passes_per_step=passes)
    for number in range(passes):
        _backward(model, number)
    error = error_of(_backward, model, passes)
    assert_raised([error], "AssertionError", "The gradient of '", f"backward_passes_per_step={passes} times")
    optimizer.synchronize()


@on_worlds(1, 2, 3)
def test_clipping(world: Workers) -> None:
    world.run(_clipping)


def _clipping() -> None:
    model, alone = mlp(), mlp()
    optimizer, plain = _distributed(model), sgd(alone)
    for step in range(4):
        optimizer.zero_grad()
        plain.zero_grad()
        _backward(model, step)
        loss_of(alone, *batch(step)).backward()
        optimizer.synchronize()
        norm = clip_grad_norm_(model.parameters(), 0.1)
        assert norm > 0.1
        assert_close([norm], [clip_grad_norm_(alone.parameters(), 0.1)], **CLOSE)
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
    assert_same_model(model, alone, **CLOSE)


@on_worlds(1, 2)
def test_step_after_synchronize_warns_once(world: Workers) -> None:
    results = world.run(_warns)
    assert [
        ("optimizer.step() called without optimizer.skip_synchronize()" in text, file)
        for text, file in results
    ] == [(True, __file__)] * len(results)


def _warns() -> tuple[str, str]:
    model = mlp()
    optimizer = _distributed(model, op=hvd.Sum)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        _backward(model)
        optimizer.synchronize()
        reduced = [param.grad.clone() for param in model.parameters()]
        optimizer.step()
        assert_close(
            [param.grad for param in model.parameters()], reduced, rtol=0, atol=0
        )  # not summed twice
        optimizer.zero_grad()
        training.train(model, optimizer, 2)
    assert len(seen) == 1
    return str(seen[0].message), seen[0].filename


@on_worlds(2)
@pytest.mark.parametrize("groups", [None, 2])
def test_zero_grad_guard(world: Workers, groups: int | None) -> None:
    world.run(_guard, groups)


def _guard(groups: int | None) -> None:
    model = mlp()
    optimizer = _distributed(model, groups=groups)
    _backward(model)
    assert_raised([error_of(optimizer.zero_grad)], "AssertionError", "zero_grad()", "before optimizer.step()")
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all(torch.equal(param.grad, torch.zeros_like(param)) for param in model.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(param.grad is None for param in model.parameters())
    _backward(model)
    optimizer.synchronize()
    optimizer.zero_grad()  # reduced, so they may go


@on_worlds(2)
def test_zero_grad_guard_of_an_incomplete_group(world: Workers) -> None:
    world.run(_guard_of_group)


def _guard_of_group() -> None:
    model = mlp()
    optimizer = _distributed(model, groups=1)
    model[0](torch.ones(1, 6, dtype=torch.float64)).sum().backward()  # half of the group
    assert_raised([error_of(optimizer.zero_grad)], "AssertionError")
    optimizer.step()
    assert_same_everywhere(model.parameters())


@on_worlds(3)
def test_process_set(world: Workers) -> None:
    """Members train together, the others on their own."""
    world.run(_process_set)


def _process_set() -> None:
    pair = hvd.add_process_set([0, 2])
    model, alone = mlp(), mlp()
    optimizer = _distributed(model, process_set=pair, groups=2)
    members = [0, 2] if pair.included() else [hvd.rank()]

    def part(tensor: torch.Tensor) -> torch.Tensor:
        share = len(tensor) // 3
        return torch.cat([tensor[rank * share : (rank + 1) * share] for rank in members])

    training.train(model, optimizer)
    training.train(alone, sgd(alone), part=part)
    assert_close(model.parameters(), alone.parameters(), **CLOSE)
    with optimizer.skip_synchronize():
        optimizer.step()
    hvd.remove_process_set(pair)


@on_worlds(2, 3)
def test_two_optimizers(world: Workers) -> None:
    """Two models that learn from each other, each with an optimizer of its own."""
    world.run(_two_optimizers)


def _gan_steps(make: Any, part: Any) -> list[nn.Module]:
    first, second = mlp(seed=1), nn.Linear(4, 1, dtype=torch.float64)
    torch.manual_seed(8)
    nn.init.normal_(second.weight)
    nn.init.zeros_(second.bias)
    optimizers = [make(first, "generator"), make(second, "critic")]
    for step in range(3):
        data, target = (part(tensor) for tensor in batch(step))
        optimizers[1].zero_grad()
        (second(first(data).detach()).pow(2).mean() - second(target).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        second.requires_grad_(False)
        (-second(first(data)).pow(2).mean()).backward()
        second.requires_grad_(True)
        optimizers[0].step()
    return [first, second]


def _two_optimizers() -> None:
    def make(model: nn.Module, prefix: str) -> Any:
        names = [(f"{prefix}.{name}", param) for name, param in model.named_parameters()]
        return hvd.DistributedOptimizer(sgd(model, lr=0.01), names)

    for mine, plain in zip(
        _gan_steps(make, own), _gan_steps(lambda m, _: sgd(m, lr=0.01), training.whole), strict=True
    ):
        assert_same_model(mine, plain, **CLOSE)


@on_worlds(2, 3)
def test_step_without_backward(world: Workers) -> None:
    """Zeros of everybody: momentum goes on."""
    world.run(_no_backward)


def _no_backward() -> None:
    model = mlp()
    before = [param.detach().clone() for param in model.parameters()]
    _distributed(model).step()
    assert_close(model.parameters(), before, rtol=0, atol=0)


@on_worlds(2)
def test_default_names(world: Workers) -> None:
    world.run(_default_names)


def _default_names() -> None:
    model = mlp()
    named = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    assert list(named._parameter_names.values()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    model = mlp()
    unnamed = hvd.DistributedOptimizer(sgd(model))
    assert list(unnamed._parameter_names.values()) == [f"allreduce.noname.0.{i}" for i in range(4)]
    training.train(model, unnamed)
    assert_same_model(model, training.trained_alone(sgd), **CLOSE)
