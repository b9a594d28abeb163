"""The operations of TensorFlow's graphs: from the native adapter, or, where that is not possible, in Python.

The native adapter adds operations with asynchronous kernels to the TensorFlow that this process has loaded. A
TensorFlow that lacks what it needs gets operations with the same signatures from :mod:`._fallback`: correct,
but each of them costs tens of microseconds of Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from horovod import _native
from horovod._core.log import logger

__all__ = ["OPERATIONS", "ops", "route", "why_fallback"]

OPERATIONS = (
    "HorovodAllreduce",
    "HorovodGroupedAllreduce",
    "HorovodAllgather",
    "HorovodGroupedAllgather",
    "HorovodBroadcast",
    "HorovodAlltoall",
    "HorovodReducescatter",
    "HorovodGroupedReducescatter",
    "HorovodJoin",
    "HorovodSize",
    "HorovodRank",
    "HorovodLocalSize",
    "HorovodLocalRank",
    "HorovodProcessSetIncluded",
)


def _python_functions() -> Any:
    """Python functions for the operations, as TensorFlow writes them for its own."""
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.framework import _pywrap_python_op_gen, op_def_registry

    known = op_def_pb2.OpList(op=[op_def_registry.get(name) for name in OPERATIONS])
    source = _pywrap_python_op_gen.GetPythonWrappers(known.SerializeToString())
    module = types.ModuleType("horovod.tensorflow.operations")
    module.__dict__["_IS_TENSORFLOW_PLUGIN"] = True  # so that AutoGraph leaves the functions alone
    exec(source, module.__dict__)
    return module


def _let_run_unordered() -> None:
    """Operations of one ``tf.function`` may be in flight at the same time, and run even if unused.

    TensorFlow runs stateful operations in the order of the program, one after the other, unless it knows of
    them that order does not matter. Which it does not here: ranks match them by name.
    """
    from tensorflow.python.framework import auto_control_deps

    known = auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
    auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = known | frozenset(OPERATIONS)


def _keep_from_autograph() -> None:
    """AutoGraph need not rewrite our functions when a ``tf.function`` that calls them is traced."""
    from tensorflow.python.autograph.core import config

    config.CONVERSION_RULES = (config.DoNotConvert("horovod"), *config.CONVERSION_RULES)


def _load() -> tuple[Any, str]:
    try:
        if problem := _native.add_to_tensorflow():
            raise ImportError(problem)
        functions = _python_functions()
    except (ImportError, AttributeError) as error:
        from horovod.tensorflow import _fallback

        why = f"TensorFlow {tf.__version__}: {error}"
        logger.warning(
            "horovod.tensorflow runs its operations in Python, which is slower than its native kernels (%s)",
            why,
        )
        return _fallback, why
    return functions, ""


def _arrange(arrangement: Callable[[], None], otherwise: str) -> None:
    """Does what TensorFlow has no public interface for; it is all for speed."""
    try:
        arrangement()
    except (ImportError, AttributeError) as error:
        logger.warning("%s (TensorFlow %s: %s)", otherwise, tf.__version__, error)


ops, why_fallback = _load()
"""The functions, and why they are Python's; empty if they are native."""


_arrange(_let_run_unordered, "operations of one tf.function run one after the other")
_arrange(_keep_from_autograph, "functions take longer to trace")


def route() -> str:
    """How operations get from TensorFlow to the engine: "native" or "python"."""
    return "python" if why_fallback else "native"
