"""Derivatives of the operations, against the rules written down here for all ranks at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import horovod.torch as hvd
from tests.support.world import Workers
from tests.torch.marks import on_worlds

Tensor = torch.Tensor
COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16, "bf16": hvd.Compression.bf16}


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _leaf(*shape: int) -> Tensor:
    return _random(hvd.rank(), *shape).requires_grad_()


def _weights(rank: int, *shape: int) -> Tensor:
    """The gradient that reaches a rank's output."""
    return _random(100 + rank, *shape)


def _gradient(output: Tensor, leaf: Tensor) -> Tensor:
    """Of the leaf, when :func:`_weights` reach the output."""
    (gradient,) = torch.autograd.grad(output, leaf, _weights(hvd.rank(), *output.shape))
    return gradient


def _close(actual: Tensor, expected: Tensor, compression: str = "none") -> None:
    tolerance = {"none": 1e-12, "fp16": 0.01, "bf16": 0.1}[compression]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


FACTORS = [{}, {"prescale_factor": 0.5}, {"prescale_factor": 2.0, "postscale_factor": 3.0}]


def _reduced(tensors: list[Tensor], op: int, prescale: float, postscale: float) -> Tensor:
    stacked = torch.stack(tensors) * prescale
    reduce: dict[int, Callable[[Tensor], Tensor]] = {
        hvd.Sum: lambda t: t.sum(0),
        hvd.Average: lambda t: t.mean(0),
        hvd.Min: lambda t: t.amin(0),
        hvd.Max: lambda t: t.amax(0),
        hvd.Product: lambda t: t.prod(0),
    }
    return reduce[op](stacked) * postscale


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product])
@pytest.mark.parametrize("factors", FACTORS, ids=str)
def test_allreduce(world: Workers, op: int, factors: dict[str, float]) -> None:
    world.run(_allreduce, op, factors, "none")


@on_worlds(2, 3)
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_allreduce_with_compression(world: Workers, compression: str) -> None:
    world.run(_allreduce, hvd.Sum, {}, compression)


def _allreduce(op: int, factors: dict[str, float], compression: str) -> None:
    """The gradients are reduced as the tensors were."""
    leaf = _leaf(3, 2)
    output = hvd.allreduce(leaf, op=op, compression=COMPRESSIONS[compression], **factors)
    scales = factors.get("prescale_factor", 1.0), factors.get("postscale_factor", 1.0)
    ranks = range(hvd.size())
    _close(output, _reduced([_random(rank, 3, 2) for rank in ranks], op, *scales), compression)
    expected = _reduced([_weights(rank, 3, 2) for rank in ranks], op, *scales)
    _close(_gradient(output, leaf), expected, compression)


@on_worlds(2)
def test_adasum(world: Workers) -> None:
    world.run(_adasum)


def _adasum() -> None:
    leaf = _leaf(4)
    gradient = _gradient(hvd.allreduce(leaf, op=hvd.Adasum), leaf)
    _close(gradient, hvd.allreduce(_weights(hvd.rank(), 4), op=hvd.Adasum))


class Halving:
    """A compression of the user's own."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, float]:
        return tensor * 0.5, 2.0

    @staticmethod
    def decompress(tensor: Tensor, ctx: float) -> Tensor:
        return tensor * ctx


@on_worlds(2, 3)
@pytest.mark.parametrize("kind", ["allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"])
def test_compression_of_ones_own(world: Workers, kind: str) -> None:
    world.run(_own_compression, kind)


def _own_compression(kind: str) -> None:
    leaf = _leaf(6, 2)
    function: Any = getattr(hvd, kind)
    grouped = kind.startswith("grouped")
    outputs = [
        function([leaf] if grouped else leaf, op=hvd.Average, **options)
        for options in ({}, {"compression": Halving})
    ]
    plain, squeezed = ([output[0] for output in outputs]) if grouped else outputs
    _close(squeezed, plain)
    _close(_gradient(squeezed, leaf), _gradient(plain, leaf))


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_grouped_allreduce(world: Workers, op: int) -> None:
    """Also if only some tensors need a gradient, and some outputs get none."""
    world.run(_grouped_allreduce, op)


def _grouped_allreduce(op: int) -> None:
    leaves = [_leaf(3), _leaf(2, 2), _leaf(1)]
    fixed, numbers = torch.ones(3), torch.arange(4)
    outputs = hvd.grouped_allreduce([*leaves, fixed, numbers], op=op, prescale_factor=0.5)
    assert [output.requires_grad for output in outputs[:3]] == [True] * 3
    assert outputs[4].dtype == torch.int64
    total = sum((output * _weights(hvd.rank(), *output.shape)).sum() for output in outputs[:2])
    total.backward()
    for leaf in leaves[:2]:
        given = [_weights(rank, *leaf.shape) for rank in range(hvd.size())]
        _close(leaf.grad, _reduced(given, op, 0.5, 1.0))
    _close(leaves[2].grad, torch.zeros(1, dtype=torch.float64))


def _rows(rank: int) -> int:
    return (rank * 2 + 2) % 5


@on_worlds(1, 2, 3, 4)
@pytest.mark.parametrize("grouped", [False, True], ids=["single", "grouped"])
def test_allgather(world: Workers, grouped: bool) -> None:
    """The average over the ranks, of which each gets its own rows: 2, 4, 1 and 3."""
    world.run(_allgather, grouped)


def _allgather(grouped: bool) -> None:
    leaf = _leaf(_rows(hvd.rank()), 2)
    if grouped:
        output, other = hvd.grouped_allgather([leaf, torch.ones(1)])
        assert other.shape == (hvd.size(),)
    else:
        output = hvd.allgather(leaf)
    ranks = range(hvd.size())
    _close(output, torch.cat([_random(rank, _rows(rank), 2) for rank in ranks]))
    averaged = torch.stack([_weights(rank, *output.shape) for rank in ranks]).mean(0)
    begin = sum(_rows(rank) for rank in range(hvd.rank()))
    _close(_gradient(output, leaf), averaged[begin : begin + _rows(hvd.rank())])


@on_worlds(2, 3)
def test_allgather_of_no_rows(world: Workers) -> None:
    world.run(_no_rows)


def _no_rows() -> None:
    leaf = _leaf(0 if hvd.rank() == 0 else 3, 2)
    output = hvd.allgather(leaf)
    (gradient,) = torch.autograd.grad(output.sum(), leaf)
    assert torch.equal(gradient, torch.ones_like(leaf))


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("root", [0, -1], ids=["first", "last"])
def test_broadcast(world: Workers, root: int) -> None:
    """The average for the root; zeros for the others."""
    world.run(_broadcast, root)


def _broadcast(root: int) -> None:
    root %= hvd.size()
    leaf = _leaf(3)
    output = hvd.broadcast(leaf, root)
    _close(output, _random(root, 3))
    averaged = torch.stack([_weights(rank, 3) for rank in range(hvd.size())]).mean(0)
    _close(_gradient(output, leaf), averaged if hvd.rank() == root else torch.zeros_like(averaged))


@on_worlds(2, 3)
def test_broadcast_of_infinite_gradients(world: Workers) -> None:
    world.run(_infinite)


def _infinite() -> None:
    leaf = _leaf(2)
    (gradient,) = torch.autograd.grad(hvd.broadcast(leaf, 0).sum() * float("inf"), leaf)
    expected = float("inf") if hvd.rank() == 0 else 0.0
    assert torch.equal(gradient, torch.full((2,), expected, dtype=torch.float64))


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("unsent", [0, 2])
def test_alltoall(world: Workers, unsent: int) -> None:
    """Every row's gradient goes back to where it came from; rows that were not sent have none."""
    world.run(_alltoall, unsent)


def _alltoall(unsent: int) -> None:
    size, rank = hvd.size(), hvd.rank()
    splits = [[(source + 2 * target) % 3 for target in range(size)] for source in range(size)]
    leaf = _leaf(sum(splits[rank]) + unsent, 2)
    output, received = hvd.alltoall(leaf, splits=splits[rank])
    assert received.dtype == torch.int32
    assert received.tolist() == [splits[source][rank] for source in range(size)]
    gradient = _gradient(output, leaf)
    expected = torch.zeros_like(leaf)
    at = 0
    for target in range(size):
        rows = splits[rank][target]
        arrived = sum(splits[source][target] for source in range(size))
        begin = sum(splits[source][target] for source in range(rank))
        expected[at : at + rows] = _weights(target, arrived, 2)[begin : begin + rows]
        at += rows
    _close(gradient, expected)


@on_worlds(1, 2, 3)
def test_alltoall_of_equal_parts(world: Workers) -> None:
    world.run(_equal_parts)


def _equal_parts() -> None:
    leaf = _leaf(2 * hvd.size())
    gradient = _gradient(hvd.alltoall(leaf), leaf)
    begin = 2 * hvd.rank()
    parts = [_weights(rank, 2 * hvd.size())[begin : begin + 2] for rank in range(hvd.size())]
    _close(gradient, torch.cat(parts))


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("factors", FACTORS, ids=str)
@pytest.mark.parametrize("rows", [6, 7])
@pytest.mark.parametrize("grouped", [False, True], ids=["single", "grouped"])
def test_reducescatter(world: Workers, op: int, factors: dict[str, float], rows: int, grouped: bool) -> None:
    """All rows of the gradient, times the factors, times the number of ranks if it was a sum."""
    world.run(_reducescatter, op, factors, rows, grouped)


def _reducescatter(op: int, factors: dict[str, float], rows: int, grouped: bool) -> None:
    size = hvd.size()
    leaf = _leaf(rows, 2)
    if grouped:
        output, _ = hvd.grouped_reducescatter([leaf, torch.ones(3)], op=op, **factors)
    else:
        output = hvd.reducescatter(leaf, op=op, **factors)
    counts = [rows // size + (rank < rows % size) for rank in range(size)]
    gathered = torch.cat([_weights(rank, count, 2) for rank, count in enumerate(counts)])
    factor = factors.get("prescale_factor", 1.0) * factors.get("postscale_factor", 1.0)
    _close(_gradient(output, leaf), gathered * factor * (size if op == hvd.Sum else 1))


@on_worlds(3)
def test_process_sets(world: Workers) -> None:
    world.run(_process_sets)


def _process_sets() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        weights = [_weights(rank, 4) for rank in (0, 2)]
        place = pair.rank()
        leaf = _leaf(4)
        _close(_gradient(hvd.allreduce(leaf, process_set=pair), leaf), sum(weights) / 2)
        _close(_gradient(hvd.grouped_allreduce([leaf], op=hvd.Sum, process_set=pair)[0], leaf), sum(weights))
        whole = [_weights(rank, 8) for rank in (0, 2)]
        own = (sum(whole) / 2)[4 * place : 4 * place + 4]
        _close(_gradient(hvd.allgather(leaf, process_set=pair), leaf), own)
        _close(_gradient(hvd.grouped_allgather([leaf], process_set=pair)[0], leaf), own)
        averaged = sum(weights) / 2 if hvd.rank() == 2 else torch.zeros(4, dtype=torch.float64)
        _close(_gradient(hvd.broadcast(leaf, 2, process_set=pair), leaf), averaged)
        back = torch.cat([tensor[2 * place : 2 * place + 2] for tensor in weights])
        _close(_gradient(hvd.alltoall(leaf, process_set=pair), leaf), back)
        gathered = torch.cat([_weights(rank, 2) for rank in (0, 2)])
        _close(_gradient(hvd.reducescatter(leaf, op=hvd.Sum, process_set=pair), leaf), gathered * 2)
        rows = hvd.grouped_reducescatter([leaf], process_set=pair)[0]
        _close(_gradient(rows, leaf), gathered)
    hvd.remove_process_set(pair)


SECOND: dict[str, Callable[[Tensor], Tensor]] = {
    "allreduce": lambda leaf: hvd.allreduce(leaf, op=hvd.Sum),
    "grouped_allreduce": lambda leaf: hvd.grouped_allreduce([leaf], op=hvd.Sum)[0],
    "allgather": lambda leaf: hvd.allgather(leaf),
    "grouped_allgather": lambda leaf: hvd.grouped_allgather([leaf])[0],
    "broadcast": lambda leaf: hvd.broadcast(leaf, 0),
    "alltoall": lambda leaf: hvd.alltoall(leaf),
    "reducescatter": lambda leaf: hvd.reducescatter(leaf, op=hvd.Sum),
    "grouped_reducescatter": lambda leaf: hvd.grouped_reducescatter([leaf], op=hvd.Sum)[0],
}


@on_worlds(1, 2, 3)
@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(world: Workers, name: str) -> None:
    world.run(_second, name)


def _second(name: str) -> None:
    """The gradient is an operation as well, whose gradient is the first one again, up to a factor.

    An allgather's is an average, and so is a broadcast's: what comes out is the operation over the number of
    ranks.
    """
    leaf = _leaf(2 * hvd.size())
    output = SECOND[name](leaf)
    weights = _weights(hvd.rank(), *output.shape).requires_grad_()
    (first,) = torch.autograd.grad(output, leaf, weights, create_graph=True)
    towards = _random(50 + hvd.rank(), *leaf.shape)
    (second,) = torch.autograd.grad(first, weights, towards)
    averaged = name in ("allgather", "grouped_allgather", "broadcast")
    _close(second, SECOND[name](towards) / (hvd.size() if averaged else 1))


@on_worlds(1, 2)
def test_other_forms_build_no_graph(world: Workers) -> None:
    world.run(_no_graph)


def _no_graph() -> None:
    leaf = _leaf(4)
    waited = [
        hvd.synchronize(handle)
        for handle in (
            hvd.allreduce_async(leaf),
            hvd.allgather_async(leaf),
            hvd.broadcast_async(leaf, 0),
            hvd.reducescatter_async(leaf),
        )
    ]
    grouped = [
        *hvd.synchronize(hvd.grouped_allreduce_async([leaf])),
        *hvd.synchronize(hvd.grouped_allgather_async([leaf])),
        *hvd.synchronize(hvd.grouped_reducescatter_async([leaf])),
        hvd.synchronize(hvd.alltoall_async(leaf))[0],
    ]
    assert not any(tensor.requires_grad for tensor in waited + grouped)
    before = leaf.detach().clone()
    assert hvd.allreduce_(leaf) is leaf
    assert hvd.broadcast_(leaf, 0) is leaf
    assert leaf.is_leaf
    assert leaf.requires_grad
    assert leaf.grad_fn is None
    assert before.shape == leaf.shape


@on_worlds(2)
def test_no_graph_without_grad_mode(world: Workers) -> None:
    world.run(_no_grad)


def _no_grad() -> None:
    leaf = _leaf(4)
    with torch.no_grad():
        assert not hvd.allreduce(leaf).requires_grad
        assert not hvd.grouped_allreduce([leaf])[0].requires_grad
        assert not hvd.alltoall(leaf).requires_grad
    with torch.inference_mode():
        assert not hvd.allgather(leaf).requires_grad
    assert not hvd.allreduce(torch.ones(3)).requires_grad
