"""Versions of torch whose tensors do not offer DLPack's C functions: they are read by ``__dlpack__()``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from tests.support.world import Workers

StartWorkers = Callable[..., Workers]

TYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def test_all_types(start_workers: StartWorkers) -> None:
    start_workers(2).run(_operations)


def _operations() -> None:
    del torch.Tensor.__dlpack_c_exchange_api__  # as if it had never been
    hvd.init()
    rank = hvd.rank()
    for name in TYPES:
        dtype = getattr(torch, name)
        for count in (3, 5000):
            own = torch.arange(count).remainder(50).to(dtype) + rank
            expected = torch.arange(count).remainder(50).to(dtype) * 2 + 1
            assert torch.equal(hvd.allreduce(own, op=hvd.Sum), expected), name
            assert torch.equal(hvd.allreduce_(own, op=hvd.Sum), expected), name
            assert torch.equal(hvd.allgather(own), torch.cat([expected, expected])), name
    flag = torch.tensor([rank == 0, True, False])
    assert hvd.allreduce(flag, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.broadcast(torch.tensor(float(rank)), root_rank=1).item() == 1.0
    parameter = torch.nn.Parameter(torch.full((4,), float(rank)))
    assert hvd.allreduce(parameter).tolist() == [0.5] * 4, "also what needs a gradient"
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce(torch.ones(3, 4).t())
    model = torch.nn.Linear(100, 100)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(2, 100) * rank).sum().backward()
    optimizer.step()
    weights = hvd.allgather(model.bias.detach().clone()).view(2, -1)
    assert not np.isnan(weights.numpy()).any()
