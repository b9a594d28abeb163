"""broadcast_optimizer_state: all ranks continue where the root stands."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import horovod.torch as hvd
from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers
from tests.torch import training
from tests.torch.marks import on_worlds
from tests.torch.training import assert_close, assert_same_everywhere, mlp, sgd

MAKERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "Muon": lambda p: torch.optim.Muon([param for param in p if param.dim() == 2], lr=0.1),
}


def _made(name: str, seed: int, steps: int, distributed: bool) -> tuple[nn.Module, Any]:
    """A model and its optimizer, after some steps of this rank alone."""
    model = mlp(seed=seed)
    optimizer = MAKERS[name](list(model.parameters()))
    training.train(model, optimizer, steps, lambda tensor: tensor + seed)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    return model, optimizer


def _assert_same_state(mine: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Values and types."""
    assert mine["param_groups"] == wanted["param_groups"]
    assert mine["state"].keys() == wanted["state"].keys()
    for index, state in wanted["state"].items():
        assert mine["state"][index].keys() == state.keys()
        for key, value in state.items():
            got = mine["state"][index][key]
            assert type(got) is type(value), key
            if isinstance(value, torch.Tensor):
                assert got.dtype == value.dtype
                assert torch.equal(got, value), key
            else:
                assert got == value


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("who", ["root", "others", "all", "none"])
def test_every_class(world: Workers, name: str, who: str) -> None:
    """Some ranks have stepped already, some are fresh: all get the root's state, parameters stay."""
    world.run(_every_class, name, who)


def _every_class(name: str, who: str) -> None:
    root = hvd.size() - 1
    steps = {"root": (0, 2), "others": (2, 0), "all": (1, 3), "none": (0, 0)}[who]
    at_root = hvd.rank() == root
    model, optimizer = _made(name, hvd.rank(), steps[at_root], distributed=True)
    before = [param.detach().clone() for param in model.parameters()]
    grads = [param.grad for param in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    assert_close(model.parameters(), before, rtol=0, atol=0)
    assert [param.grad is None for param in model.parameters()] == [grad is None for grad in grads]
    _, expected = _made(name, root, steps[1], distributed=False)
    _assert_same_state(optimizer.state_dict(), expected.state_dict())
    hvd.broadcast_parameters(model.state_dict(), root)
    optimizer.zero_grad()
    training.train(model, optimizer, 2)
    params = list(training.all_parameters(optimizer))
    assert_same_everywhere(params)


@on_worlds(2)
@pytest.mark.parametrize("distributed", [False, True], ids=["plain", "distributed"])
def test_options_arrive(world: Workers, distributed: bool) -> None:
    world.run(_options, distributed)


def _options(distributed: bool) -> None:
    model = mlp()
    layers = [model[0], model[2]]
    rank = hvd.rank()
    plain = torch.optim.Adam(
        [{"params": layer.parameters(), "lr": 0.1 * (i + 1) * (rank + 1)} for i, layer in enumerate(layers)],
        betas=(0.5 + 0.1 * rank, 0.9),
        amsgrad=rank == 0,
    )
    plain.param_groups[0]["note"] = {"rank": rank}
    optimizer = hvd.DistributedOptimizer(plain) if distributed else plain
    hvd.broadcast_optimizer_state(optimizer, 0)
    groups = optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.1, 0.2]
    assert [group["betas"] for group in groups] == [(0.5, 0.9)] * 2
    assert [group["amsgrad"] for group in groups] == [True, True]
    assert groups[0]["note"] == {"rank": 0}
    assert isinstance(groups[0]["betas"], tuple)
    assert isinstance(groups[0]["lr"], float)


@on_worlds(2)
@pytest.mark.parametrize("first", ["scheduler", "broadcast"])
def test_schedulers_go_on(world: Workers, first: str) -> None:
    world.run(_schedulers, first)


def _schedulers(first: str) -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(sgd(model, lr=0.1 if hvd.rank() == 0 else 0.7))
    if first == "scheduler":
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    hvd.broadcast_optimizer_state(optimizer, 0)
    if first == "broadcast":
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    hvd.broadcast_parameters(model.state_dict(), 0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[0]["initial_lr"] == 0.1
    training.train(model, optimizer, 1)
    scheduler.step()
    if first == "broadcast":
        assert optimizer.param_groups[0]["lr"] == 0.05
    assert_same_everywhere(model.parameters())


@on_worlds(2)
def test_learning_rates_that_are_tensors(world: Workers) -> None:
    world.run(_tensor_lr)


def _tensor_lr() -> None:
    rate = torch.tensor(0.1 * (hvd.rank() + 1))
    optimizer = torch.optim.Adam(mlp().parameters(), lr=rate, foreach=False)
    hvd.broadcast_optimizer_state(optimizer, 1)
    assert optimizer.param_groups[0]["lr"] is rate  # filled, since others may know it
    assert torch.equal(rate, torch.tensor(0.2))


@on_worlds(2, 3)
def test_sparse_embedding(world: Workers) -> None:
    world.run(_sparse_embedding)


def _sparse_embedding() -> None:
    torch.manual_seed(hvd.rank())
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    if hvd.rank() == 0:
        table(torch.arange(5)).sum().backward()
        optimizer.step()
    before = table.weight.detach().clone()
    hvd.broadcast_optimizer_state(optimizer, 0, model=table)
    assert torch.equal(table.weight, before)
    assert optimizer.state[table.weight]["step"] == 1
    assert_same_everywhere([optimizer.state[table.weight]["exp_avg"]])


@on_worlds(2)
def test_plain_values_keep_their_types(world: Workers) -> None:
    world.run(_plain_values)


def _plain_values() -> None:
    optimizer = sgd(mlp())
    (first, *_) = training.all_parameters(optimizer)
    values = {
        "int": 3,
        "float": 0.5,
        "bool": True,
        "none": None,
        "text": "x",
        "list": [1, 2.0],
        "pair": (1, 2),
    }
    if hvd.rank() == 0:
        optimizer.state[first] = copy.deepcopy(values)
    hvd.broadcast_optimizer_state(optimizer, 0)
    got = optimizer.state[first]
    assert got == values
    assert [type(value) for value in got.values()] == [type(value) for value in values.values()]


@on_worlds(2)
def test_lbfgs_is_refused(world: Workers) -> None:
    outcomes = world.run(
        lambda: error_of(hvd.broadcast_optimizer_state, torch.optim.LBFGS(mlp().parameters()), 0)
    )
    assert_raised(outcomes, "ValueError", "LBFGS")


@on_worlds(2, 3)
def test_optimizers_that_differ(world: Workers) -> None:
    outcomes = world.run(_differ)
    assert_raised(outcomes, "HorovodInternalError", "broadcast_optimizer_state()", "rank 1")


def _differ() -> Raised | None:
    params = list(mlp().parameters())
    optimizer = torch.optim.SGD(params[:3] if hvd.rank() == 1 else params)
    outcome = error_of(hvd.broadcast_optimizer_state, optimizer, 0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    return outcome
