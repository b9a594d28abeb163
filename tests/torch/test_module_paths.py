"""The names, module paths and signatures that scripts written for the original rely on."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

import horovod.torch as hvd
from tests.support.world import Workers
from tests.torch.marks import on_worlds

EXPORTS = """
Compression allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters
allreduce allreduce_async allreduce_ allreduce_async_
grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_
sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async
broadcast broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async
reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
join barrier poll synchronize init shutdown is_initialized start_timeline stop_timeline
size local_size cross_size rank local_rank cross_rank
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built
cuda_built rocm_built ProcessSet global_process_set add_process_set remove_process_set
Average Sum Adasum Min Max Product HorovodInternalError DistributedOptimizer SyncBatchNorm
""".split()  # noqa: SIM905

PATHS = {
    "horovod.torch.mpi_ops": [
        name
        for name in EXPORTS
        if name not in ("Compression", "DistributedOptimizer", "SyncBatchNorm")
        and "_object" not in name
        and "broadcast_parameters" not in name
        and "optimizer_state" not in name
    ]
    + ["is_homogeneous"],
    "horovod.torch.functions": [
        "allgather_object",
        "broadcast_object",
        "broadcast_optimizer_state",
        "broadcast_parameters",
    ],
    "horovod.torch.optimizer": ["DistributedOptimizer"],
    "horovod.torch.compression": ["Compression", "Compressor", "NoneCompressor", "FP16Compressor"],
    "horovod.torch.sync_batch_norm": ["SyncBatchNorm"],
}

CONSTANTS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}

NONE, GPS = hvd.Compression.none, hvd.global_process_set
SCALES = {"prescale_factor": 1.0, "postscale_factor": 1.0}
NEEDED = inspect.Parameter.empty
REDUCE = {"average": None, "name": None, "op": None, **SCALES, "process_set": GPS}
REDUCE_WAITING = {
    "average": None,
    "name": None,
    "compression": NONE,
    "op": None,
    **SCALES,
    "process_set": GPS,
}
GATHER = {"name": None, "process_set": GPS}
ROOT = {"root_rank": NEEDED, "name": None, "process_set": GPS}
SCATTER = {"name": None, "op": 0, "process_set": GPS, **SCALES}
SCATTER_WAITING = {"name": None, "compression": NONE, "op": 0, "process_set": GPS, **SCALES}

SIGNATURES: dict[str, dict[str, Any]] = {
    "allreduce": {"tensor": NEEDED, **REDUCE_WAITING},
    "allreduce_async": {"tensor": NEEDED, **REDUCE},
    "allreduce_": {"tensor": NEEDED, **REDUCE},
    "allreduce_async_": {"tensor": NEEDED, **REDUCE},
    "grouped_allreduce": {"tensors": NEEDED, **REDUCE_WAITING},
    "grouped_allreduce_async": {"tensors": NEEDED, **REDUCE},
    "grouped_allreduce_": {"tensors": NEEDED, **REDUCE},
    "grouped_allreduce_async_": {"tensors": NEEDED, **REDUCE},
    "sparse_allreduce_async": {"tensor": NEEDED, "name": NEEDED, "op": NEEDED, "process_set": GPS},
    "allgather": {"tensor": NEEDED, **GATHER},
    "allgather_async": {"tensor": NEEDED, **GATHER},
    "grouped_allgather": {"tensors": NEEDED, **GATHER},
    "grouped_allgather_async": {"tensors": NEEDED, **GATHER},
    "broadcast": {"tensor": NEEDED, **ROOT},
    "broadcast_async": {"tensor": NEEDED, **ROOT},
    "broadcast_": {"tensor": NEEDED, **ROOT},
    "broadcast_async_": {"tensor": NEEDED, **ROOT},
    "alltoall": {"tensor": NEEDED, "splits": None, **GATHER},
    "alltoall_async": {"tensor": NEEDED, "splits": None, **GATHER},
    "reducescatter": {"tensor": NEEDED, **SCATTER_WAITING},
    "reducescatter_async": {"tensor": NEEDED, **SCATTER},
    "grouped_reducescatter": {"tensors": NEEDED, **SCATTER_WAITING},
    "grouped_reducescatter_async": {"tensors": NEEDED, **SCATTER},
    "poll": {"handle": NEEDED},
    "synchronize": {"handle": NEEDED},
    "join": {"device": -1},
    "barrier": {"process_set": GPS},
    "broadcast_parameters": {"params": NEEDED, "root_rank": NEEDED},
    "broadcast_optimizer_state": {"optimizer": NEEDED, "root_rank": NEEDED, "model": None},
    "broadcast_object": {"obj": NEEDED, "root_rank": 0, "name": None, "process_set": GPS},
    "allgather_object": {"obj": NEEDED, "name": None},
    "init": {"comm": None, "process_sets": None},
    "start_timeline": {"file_path": NEEDED, "mark_cycles": False},
    "DistributedOptimizer": {
        "optimizer": NEEDED,
        "named_parameters": None,
        "compression": NONE,
        "backward_passes_per_step": 1,
        "op": 0,
        "gradient_predivide_factor": 1.0,
        "num_groups": 0,
        "groups": None,
        "sparse_as_dense": False,
        "process_set": GPS,
    },
    "SyncBatchNorm": {
        "num_features": NEEDED,
        "eps": 1e-5,
        "momentum": 0.1,
        "affine": True,
        "track_running_stats": True,
    },
}


@pytest.mark.parametrize("name", EXPORTS)
def test_exports(name: str) -> None:
    assert hasattr(hvd, name)
    assert name in hvd.__all__


@pytest.mark.parametrize("path", PATHS)
def test_paths(path: str) -> None:
    module = importlib.import_module(path)
    assert [name for name in PATHS[path] if not hasattr(module, name)] == []
    same = [name for name in PATHS[path] if hasattr(hvd, name)]
    assert [name for name in same if getattr(module, name) is not getattr(hvd, name)] == []


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    assert getattr(hvd, name) == CONSTANTS[name]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    """The original's, in order; ours may have more, by keyword or at the end."""
    parameters = inspect.signature(getattr(hvd, name)).parameters
    expected = SIGNATURES[name]
    assert list(parameters)[: len(expected)] == list(expected)
    assert {key: parameters[key].default for key in expected} == expected
    further = list(parameters.values())[len(expected) :]
    assert [one.name for one in further if one.default is NEEDED] == []


def test_compressors() -> None:
    from horovod.torch.compression import Compressor

    for compressor in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        assert issubclass(compressor, Compressor)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32"])
def test_compress_and_decompress(name: str, dtype: str) -> None:
    """Only floats are touched, and get their type back."""
    import torch

    compressor = getattr(hvd.Compression, name)
    tensor = torch.arange(4).to(getattr(torch, dtype))
    smaller, context = compressor.compress(tensor)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    assert smaller.dtype == (half if tensor.is_floating_point() else tensor.dtype)
    back = compressor.decompress(smaller, context)
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


def test_elastic_is_not_there_yet() -> None:
    with pytest.raises(AttributeError, match="not there yet"):
        hvd.elastic  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hvd.nonsense  # noqa: B018


@on_worlds(3)
def test_registered_process_sets(world: Workers) -> None:
    world.run(_registered)


def _registered() -> None:
    ids_and_ranks = hvd.mpi_ops._basics._get_process_set_ids_and_ranks
    assert ids_and_ranks() == {0: [0, 1, 2]}
    pair = hvd.add_process_set([2, 0])
    assert ids_and_ranks() == {0: [0, 1, 2], pair.process_set_id: [0, 2]}
    hvd.remove_process_set(pair)
    assert ids_and_ranks() == {0: [0, 1, 2]}
