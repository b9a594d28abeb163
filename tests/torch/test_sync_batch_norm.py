"""SyncBatchNorm does what torch's batch normalisation does on the batches of all ranks, joined."""

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

Tensor = torch.Tensor
SHAPES = {"1d": (), "1d long": (5,), "2d": (4, 3), "3d": (2, 3, 2)}
PLAIN = {"1d": nn.BatchNorm1d, "1d long": nn.BatchNorm1d, "2d": nn.BatchNorm2d, "3d": nn.BatchNorm3d}
CHANNELS = 3

ROWS = {
    "equal": lambda _rank: 4,
    "unequal": lambda rank: 2 + 3 * rank,
    "one each": lambda _rank: 1,
    "none on the first": lambda rank: 5 * rank,
}


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _batches(kind: str, rows: str, dtype: torch.dtype) -> list[Tensor]:
    """Of all ranks; the channels have means and variances of their own."""
    spread = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64).view(1, -1, *[1] * len(SHAPES[kind]))
    return [
        (_random(rank, ROWS[rows](rank), CHANNELS, *SHAPES[kind]) * spread + 5 * spread).to(dtype)
        for rank in range(hvd.size())
    ]


def _prepare(layer: Any) -> Any:
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([1.0, 2.0, -1.0]))
            layer.bias.copy_(torch.tensor([0.5, 0.0, 3.0]))
    return layer


def _compare(kind: str, rows: str, dtype: torch.dtype, options: dict[str, Any], last: bool = False) -> None:
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
    layer_type = torch.float32 if dtype == torch.bfloat16 else dtype
    mine = _prepare(hvd.SyncBatchNorm(CHANNELS, **options).to(layer_type))
    plain = _prepare(PLAIN[kind](CHANNELS, **options).to(layer_type))
    batches = _batches(kind, rows, dtype)
    counts = [len(batch) for batch in batches]
    begin = sum(counts[: hvd.rank()])
    own = slice(begin, begin + counts[hvd.rank()])
    for _ in range(2):
        given, joined = batches[hvd.rank()].clone(), torch.cat(batches)
        if last:
            given, joined = (tensor.to(memory_format=torch.channels_last) for tensor in (given, joined))
        given.requires_grad_()
        joined.requires_grad_()
        output, expected = mine(given), plain(joined)
        assert output.dtype == expected.dtype
        if last:
            assert output.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(output, expected[own], rtol=tolerance, atol=tolerance)
        weights = _random(77, *joined.shape).to(dtype)
        mine.zero_grad()
        plain.zero_grad()
        output.backward(weights[own])
        expected.backward(weights)
        torch.testing.assert_close(given.grad, joined.grad[own], rtol=tolerance, atol=tolerance)
        for mine_param, plain_param in zip(mine.parameters(), plain.parameters(), strict=True):
            summed = hvd.allreduce(mine_param.grad, op=hvd.Sum)  # each rank's is of its own rows
            torch.testing.assert_close(summed, plain_param.grad, rtol=tolerance, atol=20 * tolerance)
    for mine_buffer, plain_buffer in zip(mine.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine_buffer, plain_buffer, rtol=tolerance, atol=tolerance)


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("rows", ["equal", "unequal"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_training(world: Workers, kind: str, rows: str, dtype: str) -> None:
    world.run(_training, kind, rows, dtype)


def _training(kind: str, rows: str, dtype: str) -> None:
    _compare(kind, rows, getattr(torch, dtype), {})


@on_worlds(2, 3)
@pytest.mark.parametrize("kind", ["1d", "2d"])
@pytest.mark.parametrize("rows", ["one each", "none on the first"])
def test_small_batches(world: Workers, kind: str, rows: str) -> None:
    world.run(lambda: _compare(kind, rows, torch.float64, {}))


@on_worlds(1, 2)
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": None},
        {"momentum": 0.7},
        {"momentum": 0.0},
        {"affine": False},
        {"track_running_stats": False},
        {"affine": False, "track_running_stats": False, "eps": 0.1},
    ],
    ids=str,
)
def test_options(world: Workers, options: dict[str, Any]) -> None:
    world.run(lambda: _compare("2d", "unequal", torch.float64, options))


@on_worlds(1, 2, 3)
def test_channels_last(world: Workers) -> None:
    world.run(lambda: _compare("2d", "unequal", torch.float64, {}, last=True))


@on_worlds(1, 2)
@pytest.mark.parametrize("tracks", [True, False])
def test_evaluation(world: Workers, tracks: bool) -> None:
    world.run(_evaluation, tracks)


def _evaluation(tracks: bool) -> None:
    """With running statistics every rank is on its own; without, the batches are joined as in training."""
    mine = hvd.SyncBatchNorm(CHANNELS, track_running_stats=tracks).double()
    plain = nn.BatchNorm2d(CHANNELS, track_running_stats=tracks).double()
    batches = _batches("2d", "unequal", torch.float64)
    mine(batches[hvd.rank()])
    plain(torch.cat(batches))
    mine.eval()
    plain.eval()
    if tracks:
        if hvd.rank() == 0:  # alone: nothing is sent
            torch.testing.assert_close(mine(batches[0]), plain(batches[0]))
        return
    begin = sum(len(batch) for batch in batches[: hvd.rank()])
    expected = plain(torch.cat(batches))[begin : begin + len(batches[hvd.rank()])]
    torch.testing.assert_close(mine(batches[hvd.rank()]), expected)


@on_worlds(1)
def test_one_worker_is_plain_torch(world: Workers) -> None:
    world.run(_one_worker)


def _one_worker() -> None:
    mine, plain = hvd.SyncBatchNorm(CHANNELS), nn.BatchNorm2d(CHANNELS)
    (batch,) = _batches("2d", "equal", torch.float32)
    assert torch.equal(mine(batch), plain(batch))
    assert torch.equal(mine.running_var, plain.running_var)


@on_worlds(2)
def test_first_layer(world: Workers) -> None:
    """Input that needs no gradient: weight and bias get theirs."""
    world.run(_first_layer)


def _first_layer() -> None:
    layer = hvd.SyncBatchNorm(CHANNELS).double()
    batches = _batches("1d", "equal", torch.float64)
    layer(batches[hvd.rank()]).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((CHANNELS,), 4.0, dtype=torch.float64))


@on_worlds(2, 3)
def test_trained_network(world: Workers) -> None:
    """In a model, with the optimizer: as one worker on the whole batch."""
    world.run(_network)


def _model(norm: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm(8), nn.ReLU(), nn.Linear(8, 4)).double()


def _network() -> None:
    model = _model(hvd.SyncBatchNorm)
    training.train(model, hvd.DistributedOptimizer(training.sgd(model), model.named_parameters()))
    expected = training.trained_alone(training.sgd, _model(nn.BatchNorm1d))
    training.assert_same_model(model, expected, rtol=1e-8, atol=1e-8)


@on_worlds(2)
def test_refusals(world: Workers) -> None:
    for one_dimension, channels, too_few in world.run(_refusals):
        assert_raised([one_dimension], "ValueError", "2 dimensions", "not 1")
        assert_raised([channels], "ValueError", "SyncBatchNorm(3)", "4 channels")
        assert_raised([too_few], "ValueError", "more than 1 value per channel")


def _refusals() -> list[Raised | None]:
    layer = hvd.SyncBatchNorm(CHANNELS)
    rows = 1 if hvd.rank() == 0 else 0
    return [error_of(layer, tensor) for tensor in (torch.ones(3), torch.ones(2, 4), torch.ones(rows, 3))]


@on_worlds(1, 2)
def test_second_derivatives_are_refused(world: Workers) -> None:
    """Not silently wrong. (Alone it is torch's own, which has them.)"""
    outcomes = world.run(_second)
    if len(outcomes) > 1:
        assert_raised(outcomes, "RuntimeError", "once_differentiable")


def _second() -> Raised | None:
    layer = hvd.SyncBatchNorm(CHANNELS).double()
    given = _batches("1d", "equal", torch.float64)[hvd.rank()].requires_grad_()
    (gradient,) = torch.autograd.grad(layer(given).pow(3).sum(), given, create_graph=True)
    return error_of(lambda: gradient.sum().backward())


def test_signature() -> None:
    layer = hvd.SyncBatchNorm(5, 1e-3, 0.2, False, True)
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    assert (layer.num_features, layer.eps, layer.momentum, layer.affine) == (5, 1e-3, 0.2, False)
    default = hvd.SyncBatchNorm(num_features=2)
    assert (default.eps, default.momentum, default.affine, default.track_running_stats) == (
        1e-5,
        0.1,
        True,
        True,
    )
