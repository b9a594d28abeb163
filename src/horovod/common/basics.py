"""``horovod.common.basics``: there for scripts written against the original.

The original loads one native library per framework, and has an object of this class for each of them. Here
all objects stand for the one engine of the process.
"""

from __future__ import annotations

from horovod._core import basics, process_sets, reduction

__all__ = ["HorovodBasics"]


class HorovodBasics:
    """The functions that every frontend offers, and the reductions, as methods and attributes."""

    Average = reduction.Average
    Sum = reduction.Sum
    Adasum = reduction.Adasum
    Min = reduction.Min
    Max = reduction.Max
    Product = reduction.Product

    init = staticmethod(basics.init)
    shutdown = staticmethod(basics.shutdown)
    is_initialized = staticmethod(basics.is_initialized)

    rank = staticmethod(basics.rank)
    size = staticmethod(basics.size)
    local_rank = staticmethod(basics.local_rank)
    local_size = staticmethod(basics.local_size)
    cross_rank = staticmethod(basics.cross_rank)
    cross_size = staticmethod(basics.cross_size)
    is_homogeneous = staticmethod(basics.is_homogeneous)

    start_timeline = staticmethod(basics.start_timeline)
    stop_timeline = staticmethod(basics.stop_timeline)

    mpi_threads_supported = staticmethod(basics.mpi_threads_supported)
    mpi_enabled = staticmethod(basics.mpi_enabled)
    mpi_built = staticmethod(basics.mpi_built)
    gloo_enabled = staticmethod(basics.gloo_enabled)
    gloo_built = staticmethod(basics.gloo_built)
    nccl_built = staticmethod(basics.nccl_built)
    ddl_built = staticmethod(basics.ddl_built)
    ccl_built = staticmethod(basics.ccl_built)
    cuda_built = staticmethod(basics.cuda_built)
    rocm_built = staticmethod(basics.rocm_built)

    _get_process_set_ids_and_ranks = staticmethod(process_sets.ids_and_ranks)

    def __init__(self, *_library: str) -> None:
        """Takes the path and the name of a library, as the original does, and needs neither."""
