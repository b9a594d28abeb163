"""Operations under torch.compile: part of the graph, with values and gradients as without it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch import _compiled
from tests.support.world import Workers
from tests.torch import training
from tests.torch.marks import on_worlds
from tests.torch.training import CLOSE, assert_same_model, mlp, own, sgd

Tensor = torch.Tensor


class Halving:
    """A compression of the user's own."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, float]:
        return tensor * 0.5, 2.0

    @staticmethod
    def decompress(tensor: Tensor, ctx: float) -> Tensor:
        return tensor * ctx


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "allreduce": lambda x: hvd.allreduce(x * 2, op=hvd.Sum, prescale_factor=0.5).sin(),
    "allreduce average": lambda x: hvd.allreduce(x.tanh(), name="compiled").pow(2),
    "allreduce fp16": lambda x: hvd.allreduce(x * 2, compression=hvd.Compression.fp16) * x,
    "allreduce transposed": lambda x: hvd.allreduce(x.t().contiguous()).t() * x,
    "grouped_allreduce": lambda x: torch.cat(hvd.grouped_allreduce([x * 2, x.sin()], op=hvd.Sum)),
    "allgather": lambda x: hvd.allgather(x * 3).cos(),
    "broadcast": lambda x: hvd.broadcast(x * 2, 0).exp(),
    "reducescatter": lambda x: hvd.reducescatter(x * 2, op=hvd.Sum).sin(),
    "reducescatter average": lambda x: hvd.reducescatter(x * 2) + 1,
    "grouped, one used": lambda x: hvd.grouped_allreduce([x * 2, x.sin()], op=hvd.Sum)[1],
    "grouped_allgather": lambda x: torch.cat(hvd.grouped_allgather([x * 2, x.sin()])),
    "grouped_reducescatter": lambda x: torch.cat(hvd.grouped_reducescatter([x * 2, x.sin()], op=hvd.Sum)),
    "alltoall": lambda x: hvd.alltoall(x * 2, splits=[1 + x.shape[1] % 2] * hvd.size())[0].sin(),
    "own compression": lambda x: hvd.allreduce(x * 2, compression=Halving) * x,
    "two": lambda x: hvd.allreduce(hvd.broadcast(x, 0) * x, op=hvd.Sum),
}


def _leaf() -> Tensor:
    random = torch.Generator().manual_seed(hvd.rank())
    return torch.randn(7, 3, generator=random, dtype=torch.float64).requires_grad_()


def _value_and_gradient(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    leaf = _leaf()
    value = function(leaf)
    weights = torch.arange(1.0, value.numel() + 1, dtype=torch.float64).view(value.shape)
    (gradient,) = torch.autograd.grad(value, leaf, weights)
    return value.detach(), gradient


@on_worlds(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_whole_graphs(world: Workers, name: str) -> None:
    world.run(_run_compiled, name, "aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@on_worlds(2)
def test_inductor(world: Workers) -> None:
    world.run(_inductor, deadline=110)


def _inductor() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does what torch itself warns of
        _run_compiled("allreduce", "inductor")


def _run_compiled(name: str, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(FUNCTIONS[name], backend=backend, fullgraph=True)
    for _ in range(2):
        for mine, plain in zip(
            _value_and_gradient(compiled), _value_and_gradient(FUNCTIONS[name]), strict=True
        ):
            torch.testing.assert_close(mine, plain)
    with torch.no_grad():
        torch.testing.assert_close(compiled(_leaf()), FUNCTIONS[name](_leaf()))


BREAKING: dict[str, Callable[[Tensor], Tensor]] = {
    "allreduce_async": lambda x: hvd.synchronize(hvd.allreduce_async((x * 2).detach())) * x,
    "allreduce_": lambda x: hvd.allreduce_((x * 2).detach(), op=hvd.Sum) * x,
    "broadcast_": lambda x: hvd.broadcast_((x * 2).detach(), root_rank=0) * x,
}


@on_worlds(2)
@pytest.mark.parametrize("name", BREAKING)
def test_operations_that_break_the_graph(world: Workers, name: str) -> None:
    """They work all the same."""
    world.run(_breaking, name)


def _breaking(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(BREAKING[name], backend="aot_eager")
    pairs = zip(_value_and_gradient(compiled), _value_and_gradient(BREAKING[name]), strict=True)
    for mine, plain in pairs:
        torch.testing.assert_close(mine, plain)


@on_worlds(2, 3)
@pytest.mark.parametrize("when", ["before", "after"])
def test_compiled_models_train(world: Workers, when: str) -> None:
    """Compiled before or after the optimizer is made."""
    world.run(_trained, when)


def _trained(when: str) -> None:
    torch._dynamo.reset()
    model = mlp()
    compiled: Any = torch.compile(model, backend="aot_eager") if when == "before" else None
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    compiled = compiled or torch.compile(model, backend="aot_eager")
    training.train(compiled, optimizer)
    assert_same_model(model, training.trained_alone(sgd), **CLOSE)


@on_worlds(2)
def test_compiled_loss_with_averaging(world: Workers) -> None:
    """A metric that is averaged inside of the compiled training step."""
    world.run(_averaging)


def _averaging() -> None:
    torch._dynamo.reset()
    model = mlp()

    def loss_and_average(data: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        loss = nn.functional.mse_loss(model(data), target)
        return loss, hvd.allreduce(loss.detach(), name="metric")

    compiled = torch.compile(loss_and_average, backend="aot_eager", fullgraph=True)
    data, target = training.batch(0)
    loss, average = compiled(own(data), own(target))
    loss.backward()
    torch.testing.assert_close(average, training.loss_of(model, data, target).detach())


OPERATIONS: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "allreduce": lambda x: (x, None, hvd.Sum, 1.0, 1.0, 0, 0),
    "grouped_allreduce": lambda x: ([x, _leaf()], None, hvd.Sum, 1.0, 1.0, 0, 0),
    "allgather": lambda x: (x, None, 0),
    "own_rows": lambda x: (x, 7, 0),
    "grouped_allgather": lambda x: ([x, _leaf()], None, 0),
    "alltoall": lambda x: (x, [3], None, 0),
    "grouped_reducescatter": lambda x: ([x, _leaf()], None, hvd.Sum, 1.0, 1.0, 0, 0),
    "broadcast": lambda x: (x, 0, None, 0),
    "reducescatter": lambda x: (x, None, hvd.Sum, 1.0, 1.0, 0, 0),
}


@on_worlds(1)
@pytest.mark.parametrize("name", OPERATIONS)
def test_custom_operations(world: Workers, name: str) -> None:
    """torch's own check: schema, shapes for tracing, derivatives."""
    world.run(_opcheck, name)


def _opcheck(name: str) -> None:
    arguments = OPERATIONS[name](_leaf())
    torch.library.opcheck(getattr(_compiled, name), arguments)
