"""Worlds whose processes have imported Keras."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.world import Workers

SECONDS = 100.0
"""For a case, most of which is a framework that compiles: a guard against hangs, not a measurement."""

_ready: weakref.WeakSet[Workers] = weakref.WeakSet()


class Patient:
    """A world that is given more time."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def run(self, case: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls ``case(*args)`` in every process; the results by rank."""
        return self._workers.run(case, *args, deadline=SECONDS)


@pytest.fixture
def world(world: Workers) -> Patient:
    """The persistent world. To import Keras, and what it runs on, takes long on a busy machine."""
    if world not in _ready:
        world.run(_import_keras, deadline=SECONDS)
        _ready.add(world)
    return Patient(world)


def _import_keras() -> None:
    import warnings

    # What frameworks say among themselves is their own affair.
    warnings.filterwarnings("ignore", module=r"(keras|tf_keras|tensorflow|torch|jax|flatbuffers)(\.|$)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.keras import training  # noqa: F401
