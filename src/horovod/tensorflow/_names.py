"""What operations are called: ranks match them by name, and a name must be the same in every step.

Eager operations have the name that the caller gives, or none: those are numbered in the order of calls. In a
graph everything has a name, as graphs do not run in the order of the program: that of its node.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

__all__ = ["named"]

_NOT_IN_NODES = re.compile(r"[^A-Za-z0-9_./>-]")
_NOT_IN_DEFAULTS = re.compile(r"[^A-Za-z0-9_]")
_NUMBER = re.compile(r"_\d+$")


def named(
    operation: str, tensors: Any, name: str | None, ignore_name_scope: bool = False
) -> tuple[str | None, dict[str, Any]]:
    """The name for a node, and the attributes that say how ranks know the operation."""
    if tf.executing_eagerly():
        return None, {"tensor_name": name or "", "waits": 1}
    node = _NOT_IN_NODES.sub("_", name) if name else f"{operation}_{_text_of(tensors)}"
    graph = tf.compat.v1.get_default_graph()
    full: str = graph.unique_name(node, mark_as_used=False)
    if ignore_name_scope:
        full = full.rsplit("/", 1)[-1]
    return node, {"tensor_name": _branch(graph) + full, "waits": 0}


def _text_of(tensors: Any) -> str:
    """The default name of an operation on these: that of the tensor, or of a group's first."""
    first = tensors
    if isinstance(tensors, list | tuple):
        first = tensors[0] if tensors else None
    try:
        text = first.name
    except AttributeError:  # constants from outside of the graph have none
        text = "constant"
    text = _NOT_IN_DEFAULTS.sub("_", text)
    return f"{len(tensors)}_{text}" if first is not tensors else text


def _branch(graph: Any) -> str:
    """Where in a function: branches of conditions and bodies of loops are graphs with names of their own."""
    path = ""
    while (outer := getattr(graph, "outer_graph", None)) is not None:
        if _is_control_flow(graph):
            # Without the number of all functions so far, which may differ between ranks.
            path = f"{_NUMBER.sub('', graph.name)}/{path}"
        graph = outer
    return path


def _is_control_flow(graph: Any) -> bool:
    return type(graph).__name__ in ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")
