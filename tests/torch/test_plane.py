"""The torch plane on CPU tensors: what the conformance suite, which runs on it too, does not ask.

Its worlds are on the plane "torch": the engine agrees, Gloo moves. The code is that of CUDA tensors but for
``_streams.CudaStreams`` and the making of an NCCL group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.outcomes import Raised, assert_raised, error_of
from tests.support.world import Workers, WorldKey

DYNAMIC = (("HOROVOD_DYNAMIC_PROCESS_SETS", "1"),)


def on_plane(*sizes: int, plane: str = "torch", settings: tuple[tuple[str, str], ...] = ()) -> Any:
    """Runs the test in worlds whose tensors torch.distributed moves."""
    keys = [WorldKey(size, plane, settings) for size in sizes]
    return pytest.mark.parametrize("world", keys, ids=str, indirect=True)


def _executors() -> list[str]:
    import threading

    return [thread.name for thread in threading.enumerate() if thread.name.startswith("horovod.torch")]


# -- Who moves what


@on_plane(2, plane="shm")
def test_the_engine_moves_cpu_tensors_unless_asked(world: Workers) -> None:
    assert world.run(_reduce_and_look) == [[], []]


@on_plane(2)
def test_the_plane_moves_them_if_asked(world: Workers) -> None:
    assert world.run(_reduce_and_look) == [["horovod.torch plane"]] * 2


def _reduce_and_look() -> list[str]:
    import torch

    import horovod.torch as hvd

    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3
    return _executors()


@on_plane(1)
def test_alone_nothing_needs_to_be_moved(world: Workers) -> None:
    assert world.run(_alone) == [[]]


def _alone() -> list[str]:
    import torch

    import horovod.torch as hvd

    tensor = torch.tensor([2.0, float("nan")])
    assert hvd.allreduce_(tensor, op=hvd.Sum, prescale_factor=2.0) is tensor
    assert tensor[0] == 4.0
    output, received = hvd.alltoall(torch.arange(4), splits=[3])
    assert (output.tolist(), received.tolist()) == ([0, 1, 2], [3])
    assert hvd.synchronize(hvd.allgather_async(torch.ones(2, 2))).shape == (2, 2)
    return _executors()


@on_plane(2, 3)
def test_both_at_once(world: Workers) -> None:
    """numpy's arrays go by the engine, torch's tensors by the plane, in another order on every rank."""
    world.run(_both_at_once)


def _both_at_once() -> None:
    import torch

    import horovod.numpy as hvd_numpy
    import horovod.torch as hvd

    size, rank = hvd.size(), hvd.rank()
    for step in range(5):
        order = np.random.default_rng([step, rank]).permutation(40).tolist()
        handles = {}
        for i in order:
            count = 1 + 37 * i
            if i % 2:
                handles[i] = hvd.allreduce_async(torch.full((count,), float(i)), op=hvd.Sum, name=f"t{i}")
            else:
                handles[i] = hvd_numpy.allreduce_async(np.full(count, float(i)), op=hvd.Sum, name=f"n{i}")
        for i in range(40):
            result = (hvd if i % 2 else hvd_numpy).synchronize(handles[i])
            assert set(result.tolist()) == {float(i * size)}


@on_plane(2)
def test_the_programs_own_group_is_left_alone(world: Workers, tmp_path: Path) -> None:
    world.run(_own_group, str(tmp_path / "store"))


def _own_group(store: str) -> None:
    import torch
    import torch.distributed as dist

    import horovod.torch as hvd

    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3
    assert not dist.is_initialized()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=hvd.rank(), world_size=hvd.size())
    try:
        for step in range(5):
            handle = hvd.allreduce_async(torch.full((1000,), 2.0), op=hvd.Sum)
            own = torch.full((1000,), float(step))
            dist.all_reduce(own)
            assert own.eq(2.0 * step).all()
            assert hvd.synchronize(handle).eq(4.0).all()
    finally:
        dist.destroy_process_group()
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3


@on_plane(2)
def test_the_timeline_says_so(world: Workers, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    world.run(_traced, str(path))
    assert "TORCH_ALLREDUCE" in {event.get("name") for event in json.loads(path.read_text())}


def _traced(path: str) -> None:
    import torch

    import horovod.torch as hvd
    from horovod._core.runtime import engine

    if hvd.rank() == 0:
        engine().start_timeline(path, False)
    hvd.barrier()
    for _ in range(3):
        hvd.allreduce(torch.ones(3), name="traced")
    hvd.barrier()
    if hvd.rank() == 0:
        engine().stop_timeline()
    hvd.barrier()


# -- Process sets


@on_plane(3, settings=DYNAMIC)
def test_overlapping_process_sets(world: Workers) -> None:
    """Groups are made in the order of plans, whatever the order of the calls."""
    world.run(_overlapping)


def _overlapping() -> None:
    import torch

    import horovod.torch as hvd

    rank = hvd.rank()
    for round_ in range(2):  # the second time some have the same members, and other ids
        chosen = [[0, 1], [1, 2], [0, 2], [1], [0, 1, 2]][:4]
        sets = [hvd.add_process_set(ranks) for ranks in chosen[round_:] + chosen[:round_]]
        mine = [one for one in sets if rank in one.ranks]
        for step in range(4):
            order = np.random.default_rng([round_, step, rank]).permutation(len(mine)).tolist()
            handles = {
                i: hvd.allreduce_async(
                    torch.full((500,), float(rank)),
                    op=hvd.Sum,
                    name=f"of {mine[i].ranks}",
                    process_set=mine[i],
                )
                for i in order
            }
            for i, handle in handles.items():
                assert hvd.synchronize(handle).eq(float(sum(mine[i].ranks))).all()
        for one in sets:
            assert hvd.remove_process_set(one)


# -- Joining


@on_plane(2, 3)
@pytest.mark.parametrize("op", ["Sum", "Average", "Min", "Max", "Product"])
def test_join(world: Workers, op: str) -> None:
    """A rank that has joined contributes nothing."""
    size = len(world.pids)
    values = np.arange(2.0, 1.0 + size)  # of all but rank 0
    wanted = {
        "Sum": values.sum(),
        "Average": values.sum() / size,
        "Min": values.min(),
        "Max": values.max(),
        "Product": values.prod(),
    }[op]
    for number, integer in world.run(_join, op)[1:]:
        assert (number, integer) == (pytest.approx(float(wanted)), int(wanted))


def _join(op: str) -> tuple[float, int] | None:
    import torch

    import horovod.torch as hvd

    rank, reduction = hvd.rank(), getattr(hvd, op)
    found = None
    if rank > 0:
        pair = [torch.full((700,), rank + 1.0), torch.full((3,), rank + 1, dtype=torch.uint8)]
        for _ in range(3):
            numbers, integers = hvd.grouped_allreduce(pair, op=reduction, name="while one has joined")
        assert numbers.eq(numbers[0]).all()
        found = float(numbers[0]), int(integers[0])
    hvd.join()
    return found


def test_join_before_anything_else(start_workers: Callable[..., Workers]) -> None:
    """A rank that has never used the plane stands in all the same: in making the group, too."""
    world = start_workers(3, "torch")
    assert world.run(_join_at_once)[1:] == [(5.0, 5)] * 2


def _join_at_once() -> tuple[float, int] | None:
    import horovod.torch as hvd

    hvd.init()
    return _join("Sum")


@on_plane(2, plane="shm")
def test_a_program_on_cpus_joins_without_an_executor(world: Workers) -> None:
    assert world.run(_join_and_look) == [[], []]


def _join_and_look() -> list[str]:
    import horovod.torch as hvd

    hvd.join()
    return _executors()


# -- Refusals


@on_plane(2)
def test_devices_that_do_not_go_together(world: Workers) -> None:
    """The device "meta" stands for any other: it has no memory, but the call is refused before that."""
    outcomes = world.run(_mixed_group)
    assert_raised(outcomes, "HorovodInternalError", "several devices", "cpu, meta")
    assert_raised(world.run(_unknown_device), "ValueError", "meta", "CPU")


def _mixed_group() -> Raised | None:
    import torch

    import horovod.torch as hvd

    return error_of(hvd.grouped_allreduce, [torch.ones(3), torch.ones(3, device="meta")], op=hvd.Sum)


def _unknown_device() -> Raised | None:
    import torch

    import horovod.torch as hvd

    return error_of(hvd.allreduce, torch.ones(3, device="meta"))


@on_plane(2, plane="shm")
def test_mixed_devices_of_a_group_without_the_plane(world: Workers) -> None:
    assert_raised(world.run(_mixed_group), "HorovodInternalError", "several devices")


@on_plane(2)
@pytest.mark.parametrize("case", ["strided", "sparse", "complex"])
def test_tensors_that_cannot_travel(world: Workers, case: str) -> None:
    part = {"strided": "contiguous", "sparse": "to_dense", "complex": "complex64"}[case]
    assert_raised(world.run(_refused, case)[:1], "ValueError", part)


def _refused(case: str) -> Raised | None:
    import torch

    import horovod.torch as hvd

    tensor = {
        "strided": torch.ones(4, 4)[:, ::2],
        "sparse": torch.eye(3).to_sparse(),
        "complex": torch.ones(3, dtype=torch.complex64),
    }[case]
    outcome = error_of(hvd.allreduce_async_, tensor) if hvd.rank() == 0 else None
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3  # unnamed operations still match
    return outcome


# -- Modes, and what is built on operations


@on_plane(2)
def test_modes_of_autograd(world: Workers) -> None:
    world.run(_modes)


def _modes() -> None:
    import torch

    import horovod.torch as hvd

    leaf = torch.full((3,), float(hvd.rank()), requires_grad=True)
    assert hvd.broadcast_(leaf, 1) is leaf
    assert leaf.tolist() == [1.0] * 3
    hvd.allreduce(leaf * 3.0, op=hvd.Sum).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [6.0] * 3
    with torch.inference_mode():
        tensor = torch.full((3,), 1.0)
        hvd.allreduce_(tensor, op=hvd.Sum)
        assert tensor.tolist() == [2.0] * 3
    gathered = hvd.allgather(torch.ones(2, requires_grad=True))
    assert gathered.requires_grad


@on_plane(2, 3)
def test_training(world: Workers) -> None:
    """Model, optimizer and batch normalisation, against one process with all of the data."""
    parameters = world.run(_trained)
    for got, wanted in zip(parameters[0], _trained_alone(len(world.pids)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    for other in parameters[1:]:
        for a, b in zip(parameters[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def _model(norm: Any) -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), norm(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def _batch(step: int, size: int) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(step)
    return torch.randn(6 * size, 4, generator=generator), torch.randn(6 * size, 2, generator=generator)


def _trained() -> list[np.ndarray]:
    import torch

    import horovod.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    model = _model(hvd.SyncBatchNorm)
    if rank == 1:
        with torch.no_grad():
            for param in model.parameters():
                param.zero_()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), named_parameters=model.named_parameters()
    )
    hvd.broadcast_optimizer_state(optimizer, 0)
    for step in range(4):
        x, y = (part[rank::size] for part in _batch(step, size))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert _executors() == ["horovod.torch plane"]
    return [tensor.numpy() for tensor in model.state_dict().values()]


def _trained_alone(size: int) -> list[np.ndarray]:
    import torch

    model = _model(torch.nn.BatchNorm1d)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        x, y = _batch(step, size)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [tensor.numpy() for tensor in model.state_dict().values()]


# -- What NCCL would reduce by itself


@on_plane(3)
@pytest.mark.parametrize("op", ["Sum", "Average", "Min", "Max", "Product"])
def test_reductions_of_the_backend(world: Workers, op: str) -> None:
    """In an order of its own: as good as ours, not the same bits."""
    arrays = [np.random.default_rng(rank).standard_normal(1000).astype(np.float32) for rank in range(3)]
    reduce = {"Average": np.mean, "Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}[op]
    for got in world.run(_natively_reduced, op, arrays):
        np.testing.assert_allclose(got, 0.5 * reduce(arrays, axis=0), rtol=1e-4, atol=1e-6)


def _natively_reduced(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    import torch

    import horovod.torch as hvd
    from horovod._core import runtime
    from horovod.torch._groups import Group
    from horovod.torch._routes import plane_of

    hvd.allreduce(torch.ones(1))
    (group,) = [g for g in plane_of(runtime.current()).executor()._groups.values() if g.size == hvd.size()]
    reduce, calls = Group.allreduce, []

    def counted(*arguments: Any) -> None:
        calls.append(arguments)
        reduce(*arguments)

    hvd.barrier()  # nobody has the old way under way
    group.reduces, Group.allreduce = (torch.float32,), counted  # type: ignore[method-assign]
    try:
        tensor = torch.from_numpy(arrays[hvd.rank()].copy())
        result = hvd.allreduce(tensor, op=getattr(hvd, op), postscale_factor=0.5)
    finally:
        group.reduces, Group.allreduce = (), reduce  # type: ignore[method-assign]
    assert len(calls) == 1
    return result.numpy()
