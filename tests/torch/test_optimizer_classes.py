"""Every optimizer class: N workers on parts of a batch do what one plain worker does on the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from tests.support.world import Workers
from tests.torch import training
from tests.torch.marks import on_worlds

SINGLE = {"foreach": False}
MULTI = {"foreach": True}
FUSED = {"fused": True}

CLASSES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "SGD": ("lr=0.1", [{}, SINGLE, MULTI, FUSED]),
    "SGD momentum": ("lr=0.1, momentum=0.9, weight_decay=0.01", [{}, SINGLE, MULTI, FUSED]),
    "SGD nesterov": ("lr=0.1, momentum=0.9, nesterov=True", [{}, SINGLE, MULTI, FUSED]),
    "SGD maximize": ("lr=0.01, dampening=0.1, momentum=0.5, maximize=True", [{}]),
    "Adam": ("lr=0.01", [{}, SINGLE, MULTI, FUSED]),
    "Adam amsgrad": ("lr=0.01, amsgrad=True, weight_decay=0.1", [{}, SINGLE, MULTI, FUSED]),
    "AdamW": ("lr=0.01", [{}, SINGLE, MULTI, FUSED]),
    "Adagrad": ("lr=0.05, lr_decay=0.1", [{}, SINGLE, MULTI, FUSED]),
    "Adadelta": ("lr=1.0", [{}, SINGLE, MULTI]),
    "Adamax": ("lr=0.01", [{}, SINGLE, MULTI]),
    "NAdam": ("lr=0.01", [{}, SINGLE, MULTI]),
    "RAdam": ("lr=0.01", [{}, SINGLE, MULTI]),
    "RMSprop": ("lr=0.01", [{}, SINGLE, MULTI]),
    "RMSprop centered": ("lr=0.01, centered=True, momentum=0.9", [{}, SINGLE, MULTI]),
    "Rprop": ("lr=0.01", [{}, SINGLE, MULTI]),
    "ASGD": ("lr=0.05", [{}, SINGLE, MULTI]),
    "Adafactor": ("lr=0.05", [{}, SINGLE, MULTI]),
}

CASES = [
    pytest.param(name, kind, id=f"{name} {' '.join(kind) or 'default'}{'' if all(kind.values()) else ' off'}")
    for name, (_, kinds) in CLASSES.items()
    for kind in kinds
]


def _make(name: str, options: dict[str, Any], params: Any) -> torch.optim.Optimizer:
    arguments = eval(f"dict({CLASSES[name][0]})")
    return getattr(torch.optim, name.split()[0])(params, **arguments, **options)


@on_worlds(2, 3)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_many_workers(world: Workers, name: str, options: dict[str, Any]) -> None:
    world.run(_many_workers, name, options)


def _many_workers(name: str, options: dict[str, Any]) -> None:
    model = training.mlp()
    optimizer = hvd.DistributedOptimizer(_make(name, options, model.parameters()), model.named_parameters())
    training.train(model, optimizer, 6)
    expected = training.trained_alone(lambda model: _make(name, options, model.parameters()), steps=6)
    training.assert_same_model(model, expected, rtol=1e-9, atol=1e-9)


@on_worlds(1)
@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_worker_is_plain_torch(world: Workers, name: str, options: dict[str, Any], dtype: str) -> None:
    world.run(_one_worker, name, options, dtype)


def _one_worker(name: str, options: dict[str, Any], dtype: str) -> None:
    model = training.mlp(getattr(torch, dtype))
    optimizer = hvd.DistributedOptimizer(_make(name, options, model.parameters()), model.named_parameters())
    training.train(model, optimizer)
    plain = training.mlp(getattr(torch, dtype))
    training.train(plain, _make(name, options, plain.parameters()))
    training.assert_close(model.parameters(), plain.parameters(), rtol=0, atol=0)


@on_worlds(1, 2, 3)
def test_muon(world: Workers) -> None:
    world.run(_muon)


def _muon() -> None:
    def matrices(model: nn.Module) -> list[nn.Parameter]:
        return [param for param in model.parameters() if param.dim() == 2]

    model = training.mlp(torch.float32)
    optimizer = hvd.DistributedOptimizer(torch.optim.Muon(matrices(model), lr=0.01), model.named_parameters())
    training.train(model, optimizer)
    expected = training.mlp(torch.float32)
    training.trained_alone(lambda model: torch.optim.Muon(matrices(model), lr=0.01), expected)
    # It orthogonalises in bfloat16.
    tolerance = {"rtol": 0.0, "atol": 0.0 if hvd.size() == 1 else 1e-3}
    training.assert_close(model.parameters(), expected.parameters(), **tolerance)
    training.assert_same_everywhere(matrices(model))


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["sparse", "dense"])
def test_sparse_adam(world: Workers, sparse_as_dense: bool) -> None:
    world.run(_sparse_adam, sparse_as_dense)


def _words(step: int) -> torch.Tensor:
    return torch.randint(0, 10, (12, 3), generator=torch.Generator().manual_seed(step))


def _train_words(table: nn.Embedding, optimizer: torch.optim.Optimizer, part: Any) -> None:
    for step in range(4):
        optimizer.zero_grad()
        table(part(_words(step))).pow(2).mean().backward()
        optimizer.step()


def _sparse_adam(sparse_as_dense: bool) -> None:
    tables = []
    for _ in range(2):
        torch.manual_seed(3)
        tables.append(nn.Embedding(10, 4, sparse=True, dtype=torch.float64))
    table, plain = tables
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(table.parameters(), lr=0.1),
        table.named_parameters(),
        sparse_as_dense=sparse_as_dense,
    )
    _train_words(table, optimizer, training.own)
    _train_words(plain, torch.optim.SparseAdam(plain.parameters(), lr=0.1), training.whole)
    training.assert_same_model(table, plain, rtol=1e-9, atol=1e-9)


@on_worlds(2)
@pytest.mark.parametrize("lr", [0.1, "tensor"])
def test_learning_rates_that_are_tensors(world: Workers, lr: Any) -> None:
    world.run(_tensor_lr, lr)


def _tensor_lr(lr: Any) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        rate = torch.tensor(0.1, dtype=torch.float64) if lr == "tensor" else lr
        return torch.optim.AdamW(model.parameters(), lr=rate, foreach=False)

    model = training.mlp()
    training.train(model, hvd.DistributedOptimizer(make(model)))
    training.assert_same_model(model, training.trained_alone(make), rtol=1e-9, atol=1e-9)


@on_worlds(2, 3)
@pytest.mark.parametrize("form", ["named", "grouped"])
def test_forms_of_parameters(world: Workers, form: str) -> None:
    """The optimizer itself may know names, and groups with options of their own."""
    world.run(_forms, form)


def _forms(form: str) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        if form == "named":
            return torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
        groups = [{"params": list(layer.parameters())} for layer in (model[0], model[2])]
        groups[1]["lr"] = 0.01
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    model = training.mlp()
    optimizer = hvd.DistributedOptimizer(make(model))
    training.train(model, optimizer)
    training.assert_same_model(model, training.trained_alone(make), rtol=1e-9, atol=1e-9)
