"""A distributed optimizer as an object: its class, its state, schedulers, and what may not be given."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
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
from tests.torch.training import CLOSE, assert_same_model, mlp, own, sgd


@on_worlds(1, 2)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["average", "adasum"])
def test_class(world: Workers, op: int) -> None:
    world.run(_class, op)


def _class(op: int) -> None:
    model = mlp()
    plain = torch.optim.Adam(model.parameters(), lr=0.03)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=op)
    assert isinstance(optimizer, torch.optim.Adam)
    assert type(optimizer) is not torch.optim.Adam
    assert type(optimizer).__name__ == "Adam"
    assert type(optimizer).__module__ == "horovod.torch.optimizer"
    assert optimizer.param_groups is plain.param_groups
    assert optimizer.defaults["lr"] == 0.03
    assert repr(optimizer).startswith("Adam (")
    assert optimizer._parameter_names[model[0].weight] == "0.weight"
    assert torch.optim.Adam.step is not type(optimizer).step


class Scaled(torch.optim.Optimizer):
    """An optimizer of the user's own: a required argument, and a step that takes no closure."""

    def __init__(self, params: Any, scale: float) -> None:
        super().__init__(params, {"scale": scale})
        self.steps_made = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Moves the parameters."""
        self.steps_made += 1
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(param.grad, alpha=group["scale"])


@on_worlds(1, 2, 3)
def test_optimizers_of_ones_own(world: Workers) -> None:
    world.run(_own_class)


def _own_class() -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(Scaled(model.parameters(), 0.1), model.named_parameters())
    training.train(model, optimizer)
    expected = training.trained_alone(lambda model: Scaled(model.parameters(), 0.1))
    assert_same_model(model, expected, **CLOSE)
    assert optimizer.steps_made == 4


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=10),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.5)],
        milestones=[3],
    ),
}


def _train_with_schedule(model: nn.Module, optimizer: Any, scheduler: Any, part: Any) -> list[float]:
    rates = []
    for _ in range(6):
        training.train(model, optimizer, 1, part)
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    return rates


@on_worlds(1, 2)
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["average", "adasum"])
@pytest.mark.parametrize("first", ["scheduler", "optimizer"])
def test_schedulers(world: Workers, name: str, op: int, first: str) -> None:
    """Made before or after wrapping: no warning (here they are errors), and the rates arrive."""
    world.run(_schedulers, name, op, first)


def _schedulers(name: str, op: int, first: str) -> None:
    make = SCHEDULERS[name]
    model, alone = mlp(), mlp()
    plain = sgd(model)
    if first == "scheduler":
        scheduler = make(plain)
        optimizer = hvd.DistributedOptimizer(plain, op=op)
    else:
        optimizer = hvd.DistributedOptimizer(plain, op=op)
        scheduler = make(optimizer)
    rates = _train_with_schedule(model, optimizer, scheduler, own)
    other = sgd(alone)
    assert _train_with_schedule(alone, other, make(other), training.whole) == rates
    assert len(set(rates)) > 2
    if op == hvd.Average:
        assert_same_model(model, alone, **CLOSE)


@on_worlds(2)
@pytest.mark.parametrize("first", ["scheduler", "optimizer"])
def test_schedulers_after_load_state_dict(world: Workers, first: str) -> None:
    world.run(_schedulers_after_load, first)


def _schedulers_after_load(first: str) -> None:
    model = mlp()
    plain = sgd(model)
    scheduler = lr_scheduler.StepLR(plain, 1, 0.5) if first == "scheduler" else None
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    scheduler = scheduler or lr_scheduler.StepLR(optimizer, 1, 0.5)
    training.train(model, optimizer, 2)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    training.train(model, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=["average", "sum"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "RMSprop"])
def test_state_dict_round_trip(world: Workers, name: str, op: int) -> None:
    """A checkpoint of a distributed optimizer continues, in a distributed or a plain one."""
    world.run(_round_trip, name, op)


def _round_trip(name: str, op: int) -> None:
    options = {"momentum": 0.9} if name == "SGD" else {}

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return getattr(torch.optim, name)(model.parameters(), lr=0.01 / (hvd.size() if op else 1), **options)

    model, resumed, alone = mlp(), mlp(seed=1), mlp(seed=2)
    optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters(), op=op)
    training.train(model, optimizer, 2)
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert set(checkpoint[1]) == {"state", "param_groups"}
    training.train(model, optimizer, 2)
    again = hvd.DistributedOptimizer(make(resumed), resumed.named_parameters(), op=op)
    resumed.load_state_dict(checkpoint[0])
    again.load_state_dict(checkpoint[1])
    training.train(resumed, again, 2)
    training.assert_close(resumed.parameters(), model.parameters(), rtol=0, atol=0)
    plain = make(alone)
    plain.load_state_dict(checkpoint[1])


@on_worlds(2)
def test_load_state_dict_forgets_what_was_under_way(world: Workers) -> None:
    world.run(_forgets)


def _forgets() -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    checkpoint = copy.deepcopy(optimizer.state_dict())
    data, target = (own(tensor) for tensor in training.batch(0))
    training.loss_of(model, data, target).backward()
    optimizer.load_state_dict(checkpoint)
    optimizer.zero_grad()
    training.train(model, optimizer)
    assert_same_model(model, training.trained_alone(sgd), **CLOSE)


@on_worlds(1, 2)
def test_step_hooks_are_called_once(world: Workers) -> None:
    world.run(_step_hooks)


def _step_hooks() -> None:
    model = mlp()
    calls: list[str] = []
    plain = sgd(model)
    plain.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    training.train(model, optimizer, 2)
    assert calls == ["before", "after"] * 2


def _refusals() -> dict[str, tuple[Callable[[], Any], tuple[str, ...]]]:
    model = mlp()
    weight, bias, *_ = model.parameters()
    names = list(model.named_parameters())

    def wrap(*args: Any, **kwargs: Any) -> Callable[[], Any]:
        return lambda: hvd.DistributedOptimizer(sgd(model), *args, **kwargs)

    return {
        "lbfgs": (
            lambda: hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters())),
            ("LBFGS", "cannot be distributed"),
        ),
        "no optimizer": (lambda: hvd.DistributedOptimizer(model), ("torch.optim.Optimizer", "Sequential")),
        "twice": (lambda: hvd.DistributedOptimizer(wrap(names)()), ("already",)),
        "only parameters": (wrap(model.parameters()), ("named_parameters", "tuples")),
        "dict of names": (wrap(dict(names)), ("tuples",)),
        "duplicate names": (wrap([("a", weight), ("a", bias)]), ("unique", "duplicates: a")),
        "names missing": (wrap(names[:3]), ("not named", "number 3 of group 0", "[4]")),
        "groups 0": (wrap(names, groups=0), ("positive",)),
        "groups -1": (wrap(names, groups=-1), ("positive",)),
        "groups text": (wrap(names, groups="two"), ("positive number or a list",)),
        "groups float": (wrap(names, groups=2.0), ("positive number or a list",)),
        "groups flat": (wrap(names, groups=[weight, bias]), ("list of lists",)),
        "groups of names": (wrap(names, groups=[["0.weight"]]), ("parameters", "str")),
        "groups overlap": (wrap(names, groups=[[weight, bias], [weight]]), ("twice", "[520, 6]")),
        "predivide sum": (wrap(names, op=hvd.Sum, gradient_predivide_factor=2.0), ("hvd.Average",)),
        "predivide adasum": (wrap(names, op=hvd.Adasum, gradient_predivide_factor=2.0), ("hvd.Average",)),
        "passes 0": (wrap(names, backward_passes_per_step=0), ("backward_passes_per_step", "1 or more", "0")),
        "passes -1": (wrap(names, backward_passes_per_step=-1), ("1 or more",)),
        "passes 1.5": (wrap(names, backward_passes_per_step=1.5), ("1 or more",)),
        "later passes 0": (lambda: wrap(names)().set_backward_passes_per_step(0), ("1 or more",)),
        "unknown op": (wrap(names, op=17), ("op is 17", "hvd.Sum")),
        "predivide 0": (wrap(names, gradient_predivide_factor=0.0), ("gradient_predivide_factor", "0")),
        "predivide nan": (
            wrap(names, gradient_predivide_factor=float("nan")),
            ("gradient_predivide_factor",),
        ),
    }


@on_worlds(1, 2)
def test_refusals(world: Workers) -> None:
    """All in one run: each is an error at once, on this rank, that says what to do."""
    for outcomes in world.run(_outcomes):
        for label, (outcome, parts) in outcomes.items():
            assert outcome is not None, label
            assert_raised([outcome], "ValueError", *parts)


def _outcomes() -> dict[str, tuple[Raised | None, tuple[str, ...]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {label: (error_of(call), parts) for label, (call, parts) in _refusals().items()}


@on_worlds(2)
def test_unregistered_process_set(world: Workers) -> None:
    assert_raised(world.run(_unregistered), "TypeError", "registered")


def _unregistered() -> Raised | None:
    model = mlp()
    return error_of(hvd.DistributedOptimizer, sgd(model), process_set=hvd.ProcessSet([0]))


def test_before_init() -> None:
    """In the test process, which never calls ``init()``."""
    model = nn.Linear(2, 2)
    assert_raised([error_of(hvd.DistributedOptimizer, sgd(model))], "HorovodInternalError", "hvd.init()")
