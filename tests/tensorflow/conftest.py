"""Worlds whose processes have imported TensorFlow."""

from __future__ import annotations

import weakref

import pytest

from tests.support.world import Workers

_ready: weakref.WeakSet[Workers] = weakref.WeakSet()


@pytest.fixture
def world(world: Workers) -> Workers:
    """The persistent world. To import TensorFlow takes long on a busy machine."""
    if world not in _ready:
        world.run(_import_tensorflow, deadline=100)
        _ready.add(world)
    return world


def _import_tensorflow() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what TensorFlow itself imports
        import tensorflow  # noqa: F401

    import horovod.tensorflow  # noqa: F401
