"""Horovod for TensorFlow.

::

    import horovod.tensorflow as hvd

    hvd.init()
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)

Operations match across ranks by name: give one where the order of execution may differ. They work eagerly, in
``tf.function`` and in graphs of TensorFlow 1. ``horovod.tensorflow.keras`` is there for ``model.fit``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import tensorflow as tf  # noqa: F401
except ImportError as error:
    raise ImportError(
        "horovod.tensorflow needs TensorFlow 2.16 or newer; install it with: pip install tensorflow (for "
        "CPUs: pip install tensorflow-cpu)"
    ) from error

from horovod._core import basics
from horovod._core.basics import *  # noqa: F403 - who am I, and with how many others
from horovod._core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod._core.reduction import Adasum, Average, Max, Min, Product, Sum
from horovod.tensorflow import mpi_ops
from horovod.tensorflow._adasum import _DistributedAdasumOptimizer
from horovod.tensorflow._gradients import _make_allreduce_grads_fn
from horovod.tensorflow._optimizer import DistributedOptimizer, _DistributedOptimizer
from horovod.tensorflow._tapes import DistributedGradientTape, PartialDistributedGradientTape
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import (
    _basics,
    check_num_rank_power_of_2,
    handle_average_backwards_compatibility,
)
from horovod.tensorflow.util import _executing_eagerly, unconverted

if TYPE_CHECKING:
    from horovod.tensorflow import keras
    from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "_DistributedAdasumOptimizer",
    "_DistributedOptimizer",
    "_allreduce",
    "_basics",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_make_allreduce_grads_fn",
    "_reducescatter",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "keras",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "size_op",
]
__all__ += basics.__all__

DistributedAdasumOptimizer = _DistributedAdasumOptimizer

_allreduce = unconverted(mpi_ops._allreduce)
_grouped_allreduce = unconverted(mpi_ops._grouped_allreduce)
_grouped_reducescatter = unconverted(mpi_ops._grouped_reducescatter)
_reducescatter = unconverted(mpi_ops._reducescatter)
allgather = unconverted(mpi_ops.allgather)
allreduce = unconverted(mpi_ops.allreduce)
alltoall = unconverted(mpi_ops.alltoall)
broadcast = unconverted(mpi_ops.broadcast)
broadcast_ = unconverted(mpi_ops.broadcast_)
grouped_allgather = unconverted(mpi_ops.grouped_allgather)
grouped_allreduce = unconverted(mpi_ops.grouped_allreduce)
grouped_reducescatter = unconverted(mpi_ops.grouped_reducescatter)
join = unconverted(mpi_ops.join)
local_rank_op = unconverted(mpi_ops.local_rank_op)
local_size_op = unconverted(mpi_ops.local_size_op)
process_set_included_op = unconverted(mpi_ops.process_set_included_op)
rank_op = unconverted(mpi_ops.rank_op)
reducescatter = unconverted(mpi_ops.reducescatter)
size_op = unconverted(mpi_ops.size_op)


def __getattr__(name: str) -> Any:
    # To import Keras takes long, and not everybody needs it.
    if name == "keras":
        return importlib.import_module("horovod.tensorflow.keras")
    if name == "SyncBatchNormalization":
        return importlib.import_module("horovod.tensorflow.sync_batch_norm").SyncBatchNormalization
    if name == "elastic":
        raise AttributeError(
            "horovod.tensorflow.elastic is not there yet: this version cannot change the number of ranks of "
            "a job that runs."
        )
    raise AttributeError(f"module 'horovod.tensorflow' has no attribute {name!r}")
