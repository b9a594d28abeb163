"""Data loaders whose processes are forked or spawned while the world is up."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd
from tests.support.world import Workers
from tests.torch import training
from tests.torch.marks import on_worlds
from tests.torch.training import assert_same_everywhere, loss_of, mlp, sgd


@on_worlds(2)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_processes(world: Workers, method: str) -> None:
    world.run(_loader, method, deadline=100)


def _loader(method: str) -> None:
    data = training.Numbers()
    sampler = DistributedSampler(data, hvd.size(), hvd.rank(), shuffle=True)
    loader: DataLoader[tuple[torch.Tensor, torch.Tensor]] = DataLoader(
        data,
        batch_size=6,
        sampler=sampler,
        num_workers=2 if method == "fork" else 1,
        multiprocessing_context=method,
        persistent_workers=method != "fork",
    )
    model = mlp()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    rows = 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_of(model, inputs, targets).backward()
            optimizer.step()
            rows += len(inputs)
    assert rows == 2 * len(data) // hvd.size()
    del loader
    assert_same_everywhere(model.parameters())
