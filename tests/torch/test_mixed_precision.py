"""Mixed precision: loss scaling with and without clipping, and autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

import horovod.torch as hvd
from tests.support.world import Workers
from tests.torch import training
from tests.torch.marks import on_worlds
from tests.torch.training import (
    CLOSE,
    assert_same_everywhere,
    assert_same_model,
    batch,
    loss_of,
    mlp,
    own,
    sgd,
)

MAKERS: dict[str, Any] = {
    "SGD": sgd,
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "fused SGD": lambda model: sgd(model, fused=True),
    "fused Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, fused=True),
}


def _step(model: Any, optimizer: Any, scaler: GradScaler, loss: torch.Tensor, clip: bool) -> None:
    """As the torch manual says; with clipping, as Horovod's says."""
    scaler.scale(loss).backward()
    if not clip:
        scaler.step(optimizer)
    elif hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
    else:
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
def test_scaler(world: Workers, name: str, clip: bool) -> None:
    world.run(_scaler, name, clip)


def _scaler(name: str, clip: bool) -> None:
    model, alone = mlp(), mlp()
    optimizer = hvd.DistributedOptimizer(MAKERS[name](model), model.named_parameters())
    plain = MAKERS[name](alone)
    mine, other = GradScaler("cpu", init_scale=1024.0), GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        data, target = batch(step)
        _step(model, optimizer, mine, loss_of(model, own(data), own(target)), clip)
        _step(alone, plain, other, loss_of(alone, data, target), clip)
    assert_same_model(model, alone, **CLOSE)


@on_worlds(2, 3)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize("zero", ["optimizer", "model"])
def test_overflow_on_one_rank(world: Workers, name: str, clip: bool, zero: str) -> None:
    """All ranks skip the step, and all scales shrink; training goes on."""
    world.run(_overflow, name, clip, zero)


def _overflow(name: str, clip: bool, zero: str) -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(MAKERS[name](model), model.named_parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    scales = []
    for step in range(5):
        before = [param.detach().clone() for param in model.parameters()]
        data, target = (own(tensor) for tensor in batch(step))
        if step in (1, 2) and hvd.rank() == 1:
            data = data * float("inf")
        loss = loss_of(model, data.nan_to_num(posinf=1e200, neginf=-1e200), target)
        scaler.scale(loss if step not in (1, 2) or hvd.rank() != 1 else loss * 1e308).backward()
        if clip:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        (optimizer if zero == "optimizer" else model).zero_grad()
        scales.append(scaler.get_scale())
        moved = any(not torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
        assert moved == (step not in (1, 2)), step
    assert scales == [1024.0, 512.0, 256.0, 256.0, 256.0]
    assert_same_everywhere(model.parameters())


@on_worlds(2)
def test_disabled_scaler(world: Workers) -> None:
    world.run(_disabled)


def _disabled() -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    scaler = GradScaler("cpu", enabled=False)
    for step in range(4):
        _step(model, optimizer, scaler, loss_of(model, *(own(t) for t in batch(step))), clip=step % 2 == 1)
    assert_same_everywhere(model.parameters())


@on_worlds(2)
def test_scaler_and_accumulation(world: Workers) -> None:
    world.run(_accumulation)


def _accumulation() -> None:
    model, alone = mlp(), mlp()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), backward_passes_per_step=2)
    plain = sgd(alone)
    mine, other = GradScaler("cpu", init_scale=64.0), GradScaler("cpu", init_scale=64.0)
    for step in range(3):
        for number in range(2):
            data, target = batch(2 * step + number)
            mine.scale(loss_of(model, own(data), own(target))).backward()
            other.scale(loss_of(alone, data, target)).backward()
        for scaler, one in ((mine, optimizer), (other, plain)):
            scaler.step(one)
            scaler.update()
            one.zero_grad()
    assert_same_model(model, alone, **CLOSE)


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("scaled", [False, True], ids=["unscaled", "scaled"])
def test_autocast(world: Workers, scaled: bool) -> None:
    world.run(_autocast, scaled)


def _autocast(scaled: bool) -> None:
    model, alone = mlp(torch.float32), mlp(torch.float32)
    optimizer, plain = hvd.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(alone)
    scalers = [GradScaler("cpu", init_scale=16.0, enabled=scaled) for _ in range(2)]
    for step in range(3):
        pairs = ((model, optimizer, own), (alone, plain, training.whole))
        for scaler, (one, its, part) in zip(scalers, pairs, strict=True):
            data, target = (part(tensor) for tensor in batch(step, torch.float32))
            with torch.autocast("cpu", torch.bfloat16):
                output = one(data)
            assert output.dtype == torch.bfloat16
            loss = torch.nn.functional.mse_loss(output.float(), target)
            _step(one, its, scaler, loss, clip=False)
    assert_same_model(model, alone, rtol=0.02, atol=0.02)


@on_worlds(2)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_models_of_halves(world: Workers, dtype: str) -> None:
    world.run(_halves, dtype)


def _halves(dtype: str) -> None:
    kind = getattr(torch, dtype)
    model, alone = mlp(kind), mlp(kind)
    training.train(model, hvd.DistributedOptimizer(sgd(model), model.named_parameters()))
    training.trained_alone(sgd, alone)
    assert_same_model(model, alone, rtol=0.1, atol=0.1)


@on_worlds(2)
def test_adasum_with_an_overflow_on_one_rank(world: Workers) -> None:
    """Gradients are not reduced, so the others do not see it: they are told."""
    world.run(_adasum_overflow)


def _adasum_overflow() -> None:
    model, alone = mlp(), mlp()
    optimizer = hvd.DistributedOptimizer(sgd(model, lr=0.001), model.named_parameters(), op=hvd.Adasum)
    unscaled = hvd.DistributedOptimizer(sgd(alone, lr=0.001), alone.named_parameters(), op=hvd.Adasum)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        overflow = step == 1
        data, target = (own(tensor) for tensor in batch(step))
        loss = loss_of(model, data, target)
        scaler.scale(loss * float("inf") if overflow and hvd.rank() == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if not overflow:
            loss_of(alone, data, target).backward()
            unscaled.step()
            unscaled.zero_grad()
    assert_same_model(model, alone, **CLOSE)
    assert_same_everywhere(model.parameters())
