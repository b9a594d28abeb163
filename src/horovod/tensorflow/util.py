"""``horovod.tensorflow.util``: variables and modes of execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

__all__ = ["VariableSet", "_executing_eagerly", "key_of", "places_of", "plain", "unconverted", "unique_name"]

F = TypeVar("F", bound=Callable[..., Any])


def unconverted(function: F) -> F:
    """The function as it is written: in ``tf.function`` AutoGraph would rewrite it, and all that it calls."""
    kept: F = tf.autograph.experimental.do_not_convert(function)
    return kept


def _executing_eagerly() -> bool:
    """Whether operations run at once; not so in ``tf.function`` and in graphs of TensorFlow 1."""
    return bool(tf.executing_eagerly())


def plain(variable: Any) -> Any:
    """TensorFlow's variable in a Keras 3 variable; any other one itself."""
    if isinstance(variable, tf.Variable):
        return variable
    value = getattr(variable, "value", None)
    return variable if value is None or callable(value) else value


def key_of(variable: Any) -> int:
    """Two objects that stand for the same variable have the same key. (Variables compare by value.)"""
    return id(plain(variable))


def unique_name(name: str) -> str:
    """A name that this graph has not used yet; when executing eagerly operations end before the next begin.

    Graphs are built alike on all ranks, so these names are the same everywhere, and from step to step.
    """
    if tf.executing_eagerly():
        return name
    unique: str = tf.compat.v1.get_default_graph().unique_name(name)
    return unique


class VariableSet:
    """Variables by identity."""

    def __init__(self, variables: Iterable[Any] = ()) -> None:
        self._variables: dict[int, Any] = {}
        for variable in variables:
            self.add(variable)

    def add(self, variable: Any) -> None:
        """One more."""
        self._variables[key_of(variable)] = plain(variable)  # kept, so that its key is not used again

    def __contains__(self, variable: Any) -> bool:
        return key_of(variable) in self._variables

    def __len__(self) -> int:
        return len(self._variables)


def places_of(variables: Sequence[Any]) -> dict[int, int]:
    """Where in the list each variable is, by its key."""
    return {key_of(variable): place for place, variable in enumerate(variables)}
